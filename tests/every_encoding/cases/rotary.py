"""Rotations of queries and keys, and scores of turned pairs."""

from megatron_mep.encodings.fope import Fope
from megatron_mep.encodings.hope import Hope
from megatron_mep.encodings.lrpe import Lrpe
from megatron_mep.encodings.p_rope import PRope
from megatron_mep.encodings.rpe_3d import Rpe3d
from megatron_mep.encodings.xpos import Xpos
from tests.every_encoding.case import Case

CASES = (
    Case("p_rope", PRope()),
    Case("p_rope-half", PRope(fraction=0.5, base=500_000.0)),
    Case("p_rope-none", PRope(fraction=0.0), acts=False),
    Case("hope", Hope(train_length=512)),
    Case("hope-short", Hope(train_length=7, base=100.0)),
    Case("fope", Fope(train_length=512)),
    Case("fope-more", Fope(train_length=8192, fraction=0.75, base=100.0)),
    Case("fope-still", Fope(train_length=8192, fraction=1.0, gain=0.6, padding="still")),
    Case("lrpe", Lrpe()),
    Case("lrpe-learned", Lrpe(vector="learned")),
    Case("lrpe-heads", Lrpe(vector_of_each_head=True, base=500.0)),
    Case("lrpe-heads-learned", Lrpe(vector="learned", vector_of_each_head=True)),
    Case("lrpe-identity", Lrpe(transform="identity", core="mixed")),
    Case("lrpe-dct", Lrpe(transform="dct")),
    Case("lrpe-odd-even", Lrpe(transform="odd_even", core="mixed")),
    Case("xpos", Xpos()),
    Case("xpos-fast", Xpos(base=500.0, gamma=0.1, scale_base=8.0)),
    # chunks of 4 tokens, of 5 and of 3: several in the sequences of a test
    Case("rpe_3d", Rpe3d(chunk_size=5, local_window=1)),
    Case("rpe_3d-no-window", Rpe3d(chunk_size=5, local_window=0, base=500.0)),
    Case("rpe_3d-neighbours", Rpe3d(chunk_size=4, local_window=1, chunk_base=2.0, phase_from=2)),
    Case("rpe_3d-one-chunk", Rpe3d(chunk_size=768, local_window=64)),
)
