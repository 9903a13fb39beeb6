"""The largest tensor of a model under every encoding that is built in."""

from typing import Any

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.every_encoding.case import Case
from tests.every_encoding.conftest import built_in
from tests.model.test_gpt import Recorder
from tests.support.distributed import joined, run
from tests.support.results import losses_of
from tests.support.tiny import VOCABULARY, model_config, samples


def test_the_largest_tensor_of_every_encoding_grows_with_the_length():
    run(_growth, 1)


def _growth():
    joined()
    for case in {type(case.encoding): case for case in built_in()}.values():
        short, long = (_largest_allocation(case, length) for length in (256, 512))
        # the 512 x 512 scores of a single head are 2.7 times the logits of 256 tokens
        assert long <= 2.05 * short, f"{case.name}: {short} bytes, then {long}"
    alibi = Case("alibi", Alibi(), heads=(1,))
    short, long = (_largest_allocation(alibi, length, attention_backend="reference") for length in (256, 512))
    assert long > 2.05 * short, "the scores of a single head are not seen"


def _largest_allocation(case: Case, length: int, **changes: Any) -> int:
    """Bytes of the largest tensor of a forward and backward pass."""
    heads = case.heads[0]
    sizes = {"num_layers": 1, "num_attention_heads": heads, "hidden_size": 4 * heads, "ffn_hidden_size": 64}
    config = model_config(encoding=_slim(case.encoding), **sizes, **changes)
    model = build_model(config, ParallelConfig(), VOCABULARY, 3)
    with Recorder() as recorder:
        losses_of(model, samples(0, 1, length)).mean().backward()
    return recorder.largest


def _slim(encoding: Encoding) -> Encoding:
    """With one hidden unit, whose values could hide a matrix of scores, and positions for all tokens."""
    changes = {"width": 1, "range": 1024}
    return encoding.model_copy(
        update={key: value for key, value in changes.items() if isinstance(getattr(encoding, key, None), int)}
    )
