"""TAPE."""

from megatron_mep.encodings.tape import Tape
from tests.every_encoding.case import Case

CASES = (
    Case("tape", Tape(), tensor_sizes=(1,), starts_at_rest=True),
    Case("tape-base", Tape(base=500_000.0), tensor_sizes=(1,), starts_at_rest=True),
    Case("tape-narrow", Tape(width=7, init_std=0.5), tensor_sizes=(1,), starts_at_rest=True),
    Case("tape-mixed", Tape(attended="mixed"), tensor_sizes=(1,), starts_at_rest=True),
)
