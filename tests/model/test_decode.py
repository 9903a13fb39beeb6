"""Every encoding decodes as it trains: logits after cached keys are those of a full forward pass."""

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from megatron_mep.encodings.base import DistanceBias, Weight, per_head
from megatron_mep.model.attention_work import take_attention_work
from megatron_mep.model.decode import Decoder, cache_bytes
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, SEQ_LENGTH, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_exact_equal, assert_within_budget

LENGTH = 40
"""Beyond the training length."""
PROMPT, CHUNK = 20, 8


class Falling(DistanceBias):
    """b_h(d) = -slope_h log(1 + d), an encoding of a user's own."""

    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "-slope_h log(1 + d)"

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        return {"slope": Weight(0.1 + torch.rand(num_heads, generator=generator))}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        return -per_head(weights["slope"], distance) * distance.log1p()


# one of each kind: tests/every_encoding has all of them
ENCODINGS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("alibi", "fire", "fox", "mep", "nope", "rope", "sinusoidal", "xpos")},
    "cope": {"name": "cope", "num_positions": 6},
    "learned mep": LEARNED,
    "own": {"name": f"{__name__}:{Falling.__name__}"},
    "segments": {"name": "bipe_rope", "ends": [3, 50, 201]},
}


def built(layout: ParallelConfig | None = None, **changes: Any) -> nn.Module:
    changes = {"encoding": {"name": "alibi"}, "num_query_groups": 2, **changes}
    return build_model(model_config(**changes), layout or ParallelConfig(), VOCABULARY, seed=3)


def tokens_of(num_samples: int, length: int) -> Tensor:
    return samples(0, num_samples, length)[:, :length]


def full(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(tokens, None, None, runtime_gather_output=True)[..., :VOCABULARY]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("name", ENCODINGS)
def test_cached_logits_are_those_of_a_full_forward(name: str, tensor: int):
    run(_cached, tensor, name, tensor)


def _cached(name: str, tensor: int):
    joined(tensor=tensor)
    assert LENGTH > 2 * SEQ_LENGTH
    model, tokens = built(ParallelConfig(tensor=tensor), encoding=ENCODINGS[name]), tokens_of(2, LENGTH)
    decoder = Decoder(model, VOCABULARY, max_length=LENGTH, batch_size=2)
    ends = [PROMPT, PROMPT + CHUNK, *range(PROMPT + CHUNK + 1, LENGTH + 1)]
    parts = [tokens[:, start:end] for start, end in zip([0, *ends], ends, strict=False)]
    cached = torch.cat([decoder.read(part, num_logits=part.size(1)) for part in parts], dim=1)
    assert decoder.length == LENGTH
    plain = full(model, tokens)
    assert_within_budget(cached, plain, full(model.double(), tokens), name)


@pytest.mark.parametrize("name", ["mep", "learned power"])
def test_cached_logits_are_those_of_all_keys_where_far_ones_are_left_out(name: str):
    run(_windowed, 2, name)


def _windowed(name: str):
    here = joined(tensor=2)
    power = {"name": "mep", "kernels": [{"kernel": "exponential", "learned": True, "slopes": [1.0, 0.7, 0.5, 0.3]}]}
    encoding = {"mep": {"name": "mep", "kernels": [{"kernel": "exponential", "width": 0.2}]}, "learned power": power}[
        name
    ]
    layout, length = ParallelConfig(tensor=2), 1200
    model, tokens = built(layout, encoding=encoding, attention_epsilon=1e-9), tokens_of(2, length)
    decoder = Decoder(model, VOCABULARY, max_length=length, batch_size=2)
    cached = [decoder.read(tokens[:, :1190], num_logits=2, chunk_size=700)]
    chunks = take_attention_work(model, here)
    cached += [decoder.read(tokens[:, [position]]) for position in range(1190, length)]
    steps = take_attention_work(model, here)
    assert chunks.kept < 0.8
    assert steps.kept < 0.5
    assert 0 < chunks.dropped <= 1e-9
    whole = built(layout, encoding=encoding)
    exact = full(built(layout, encoding=encoding).double(), tokens)[:, 1188:]
    assert_within_budget(torch.cat(cached, dim=1), full(whole, tokens)[:, 1188:], exact, name)


def test_a_prompt_in_chunks_gives_the_logits_that_are_wanted():
    run(_chunks, 1)


def _chunks():
    joined()
    model, tokens = built(), tokens_of(2, PROMPT)
    plain = full(model, tokens)
    exact = full(model.double(), tokens)
    model.float()
    for chunk_size in (1, CHUNK, PROMPT, PROMPT + 1):
        # within the last chunk, all of it, across chunks, and all
        for num_logits in (1, 4, 6, PROMPT):
            found = Decoder(model, VOCABULARY, PROMPT, 2).read(tokens, num_logits, chunk_size)
            what = f"{num_logits} of {PROMPT} in chunks of {chunk_size}"
            assert_within_budget(found, plain[:, -num_logits:], exact[:, -num_logits:], what)


def test_a_long_prompt_holds_one_chunk_and_one_row_of_logits():
    run(_memory, 1)


def _memory():
    joined()
    model, rows, logits = built(), [], []
    model.decoder.register_forward_hook(lambda *call: rows.append(len(call[2])))
    model.output_layer.register_forward_hook(lambda *call: logits.append(len(call[2][0])))
    Decoder(model, VOCABULARY, PROMPT).read(tokens_of(1, PROMPT), chunk_size=CHUNK)
    assert rows == [8, 8, 4]
    assert logits == [1, 1, 1]


def test_a_decoder_reads_as_if_no_other_had_read():
    run(_others, 1)


def _others():
    joined()
    model, tokens = built(), tokens_of(1, 6)
    alone = Decoder(model, VOCABULARY, 6).read(tokens)
    first, second = (Decoder(model, VOCABULARY, 6) for _ in range(2))
    first.read(tokens[:, :3])
    second.read(tokens.flip(1))
    model.train()
    assert_exact_equal(first.read(tokens[:, 3:]), Decoder(model, VOCABULARY, 6).read(tokens, chunk_size=3))
    assert_within_budget(alone, full(model, tokens)[:, -1:], full(model.double(), tokens)[:, -1:])


@pytest.mark.parametrize(("tensor", "groups"), [(1, 4), (1, 2), (2, 2), (4, 2)])
def test_the_cache_takes_what_is_told(tensor: int, groups: int):
    run(_taken, tensor, tensor, groups)


def _taken(tensor: int, groups: int):
    joined(tensor=tensor)
    model = built(ParallelConfig(tensor=tensor), num_query_groups=groups).bfloat16()
    decoder = Decoder(model, VOCABULARY, max_length=9, batch_size=2)
    decoder.read(tokens_of(2, 3))
    taken = [part.nbytes for pair in decoder._cache.key_value_memory_dict.values() for part in pair]
    assert len(taken) == 2 * 2
    assert sum(taken) == cache_bytes(model_config(num_query_groups=groups), tensor, 9, torch.bfloat16, batch_size=2)


def test_what_would_be_read_wrongly_is_refused():
    run(_refused, 2)


def _refused():
    joined(tensor=2)
    with pytest.raises(AssertionError, match="does not divide over the tensor ranks"):
        Decoder(built(ParallelConfig(tensor=2, sequence=True)), VOCABULARY, 4)
    decoder = Decoder(built(ParallelConfig(tensor=2)), VOCABULARY, 4)
    decoder.read(tokens_of(1, 3))
    with pytest.raises(AssertionError, match="more tokens than the cache has room for"):
        decoder.read(tokens_of(1, 2))
    with pytest.raises(AssertionError, match="logits after 2 of 1 tokens"):
        decoder.read(tokens_of(1, 1), num_logits=2)
