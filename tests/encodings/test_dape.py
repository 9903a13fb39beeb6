"""DAPE's scores, pair by pair in Python's floats."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.position_bias import position_bias_attention
from megatron_mep.attention.reference import dense_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias, LayerSizes, PositionBias
from megatron_mep.encodings.dape import INNER, AdaptedBias, Dape, DapeV2
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.t5 import T5
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.encodings.content import HEAD_SIZE, HEADS, initial, random
from tests.model.test_gpt import Recorder
from tests.support.distributed import joined, run
from tests.support.results import losses_of
from tests.support.tiny import VOCABULARY, model_config, samples

LENGTH = 7
POSITION = torch.arange(LENGTH).double()
# a bias that is not zero at distance zero tells of the future where it is not masked
ALL = (
    Dape(inner=Alibi(), width=5),
    Dape(inner=Fire(), width=5),
    DapeV2(inner=T5(), width=5),
    DapeV2(inner=Fire(), width=3, kernel_size=5),
    DapeV2(inner=Alibi(), width=5, kernel_size=1),
)
every = pytest.mark.parametrize("encoding", ALL, ids=[f"{one.name}-{one.inner.name}-{one.num_taps}" for one in ALL])


def bias_of(encoding: AdaptedBias, weights: dict[str, Tensor], length: int = LENGTH) -> Tensor:
    """The inner bias by itself, `[H, S, S]`, zero in the future."""
    own = {name.removeprefix(INNER): weight for name, weight in weights.items() if name.startswith(INNER)}
    position = torch.arange(length).double()
    if isinstance(encoding.inner, DistanceBias):
        return encoding.inner.of_distance((position[:, None] - position).clamp(min=0), **own).tril()
    assert isinstance(encoding.inner, PositionBias)
    return encoding.inner.of_positions(position, position, **own).tril()


def drawn(encoding: AdaptedBias) -> dict[str, Tensor]:
    """Initial weights, those of the network made larger."""
    return {name: weight if name.startswith(INNER) else 2 * weight for name, weight in initial(encoding).items()}


def mixed(encoding: AdaptedBias, weights: dict[str, Tensor], scores: Tensor) -> Tensor:
    """The new scores of `[B, H, S, S]`, zero in the future."""
    position = torch.arange(scores.size(-1)).double()
    query = random(*scores.shape[:3], HEAD_SIZE)
    return encoding.of_scores(scores.tril(), query, position, position, **weights).tril()


def expected(scores: Tensor, bias: Tensor, weights: dict[str, Tensor], i: int) -> list[list[float]]:
    """The new scores of query i and every key up to it, `[H][i + 1]`: two convolutions along an endless row of keys."""
    read = torch.cat((scores, bias))[:, i].tolist()
    taps = weights["hidden"].size(-1)
    reach = taps // 2

    def convolved(value: Callable[[int, int], float], kernel: Tensor, at: int) -> float:
        return math.fsum(
            float(kernel[channel, tap]) * value(channel, at + tap - reach)
            for channel in range(len(kernel))
            for tap in range(taps)
        )

    def channel_of(channel: int, key: int) -> float:
        return read[channel][key] if 0 <= key <= i else 0.0

    def hidden(unit: int, key: int) -> float:
        if key < 0:
            return 0.0
        number = convolved(channel_of, weights["hidden"][unit], key) + float(weights["hidden_bias"][unit])
        return number if number > 0 else 0.01 * number

    return [
        [read[h][j] + read[len(scores) + h][j] + convolved(hidden, weights["outer"][h], j) for j in range(i + 1)]
        for h in range(len(scores))
    ]


@every
def test_scores_are_the_papers(encoding: AdaptedBias) -> None:
    weights, scores = drawn(encoding), random(2, HEADS, LENGTH, LENGTH)
    bias, new = bias_of(encoding, weights), mixed(encoding, weights, scores)
    for sample in range(2):
        for i in range(LENGTH):
            one = torch.tensor(expected(scores[sample], bias, weights, i), dtype=torch.float64)
            torch.testing.assert_close(new[sample, :, i, : i + 1], one, rtol=1e-12, atol=1e-12)


@every
def test_scores_are_those_of_the_authors_network_but_for_the_last_queries(encoding: AdaptedBias) -> None:
    """PyTorch's convolution, as theirs, takes hidden values beyond the last key for zero."""
    weights, scores = drawn(encoding), random(2, HEADS, LENGTH, LENGTH).tril()
    bias = bias_of(encoding, weights)
    read, padding = torch.cat((scores, bias.expand_as(scores)), dim=1), (0, encoding.num_taps // 2)
    hidden = functional.conv2d(read, weights["hidden"][:, :, None], weights["hidden_bias"], padding=padding)
    network = functional.conv2d(functional.leaky_relu(hidden), weights["outer"][:, :, None], padding=padding)
    theirs, ours = (scores + bias + network).tril(), mixed(encoding, weights, scores)
    sure = LENGTH - encoding.num_taps // 2
    torch.testing.assert_close(ours[:, :, :sure], theirs[:, :, :sure], rtol=1e-12, atol=1e-12)
    assert torch.allclose(ours, theirs) == (encoding.num_taps == 1)


@every
def test_a_last_layer_of_zeros_leaves_the_inner_bias(encoding: AdaptedBias) -> None:
    weights = drawn(encoding)
    weights["outer"] = torch.zeros_like(weights["outer"])
    query, key, value = random(3, 2, HEADS, LENGTH, HEAD_SIZE)
    ours = score_mix_attention(query, key, value, partial(encoding.of_scores, **weights), scale=0.3)
    own = {name.removeprefix(INNER): weight for name, weight in weights.items() if name.startswith(INNER)}
    if isinstance(encoding.inner, DistanceBias):
        inner = dense_attention(query, key, value, encoding.inner.of_distance(POSITION, **own), scale=0.3)
    else:
        inner = position_bias_attention(query, key, value, partial(encoding.inner.of_positions, **own), scale=0.3)
    torch.testing.assert_close(ours, inner, rtol=1e-12, atol=1e-12)


@every
def test_a_bias_of_the_last_layer_would_change_nothing(encoding: AdaptedBias) -> None:
    """A constant of a head, which the authors' networks have and ours leaves out."""
    weights, scores = drawn(encoding), random(1, HEADS, LENGTH, LENGTH)
    new = mixed(encoding, weights, scores)
    with_constant = new + random(HEADS, 1, 1, seed=4)
    torch.testing.assert_close(with_constant.softmax(-1)[..., -1, :], new.softmax(-1)[..., -1, :])


@every
def test_a_query_knows_nothing_of_the_tokens_that_follow(encoding: AdaptedBias) -> None:
    weights = drawn(encoding)
    query, key, value = random(3, 1, HEADS, LENGTH, HEAD_SIZE)
    attend = partial(score_mix_attention, mix=partial(encoding.of_scores, **weights), scale=0.3)
    whole = attend(query, key, value)
    for length in range(1, LENGTH):
        for others in (torch.zeros(0, HEAD_SIZE), 10 * random(2, HEAD_SIZE, seed=2)):
            changed = [
                torch.cat((each[:, :, :length], others.double().expand(1, HEADS, -1, -1)), dim=2)
                for each in (query, key, value)
            ]
            again = attend(*changed)[:, :, :length]
            torch.testing.assert_close(again, whole[:, :, :length], rtol=1e-12, atol=1e-12)


def test_the_first_is_the_second_with_a_kernel_of_one() -> None:
    first, second = Dape(width=5), DapeV2(width=5, kernel_size=1)
    scores, weights = random(2, HEADS, LENGTH, LENGTH), drawn(first)
    assert {name: weight.shape for name, weight in drawn(second).items()} == {
        name: weight.shape for name, weight in weights.items()
    }
    assert mixed(first, weights, scores).equal(mixed(second, weights, scores))


def test_initial_weights_are_uniform_over_the_inverse_root_of_the_inputs() -> None:
    declared = DapeV2(width=64, kernel_size=3).layer_weights(LayerSizes(32, 256, 8), torch.Generator().manual_seed(0))
    network = {name: weight for name, weight in declared.items() if not name.startswith(INNER)}
    shapes = {name: tuple(weight.value.shape) for name, weight in network.items()}
    assert shapes == {"hidden": (64, 64, 3), "hidden_bias": (64,), "outer": (32, 64, 3)}
    for weight in network.values():
        bound = (64 * 3) ** -0.5
        assert float(weight.value.abs().max()) <= bound
        assert float(weight.value.std()) == pytest.approx(bound / 3**0.5, rel=0.15)
        assert weight.learned
    assert [name for name, weight in network.items() if weight.per_head] == ["outer"]


def test_no_tensor_grows_with_the_square_of_the_length() -> None:
    run(_memory, 1)


def _memory() -> None:
    joined()
    for encoding in (Dape(), DapeV2(inner=Fire())):
        model = build_model(model_config(encoding=encoding, num_layers=1), ParallelConfig(), VOCABULARY, 3)
        largest = []
        for length in (256, 512):
            with Recorder() as recorder:
                losses_of(model, samples(0, 1, length)).mean().backward()
            largest.append(recorder.largest)
        # all hidden values of a chunk of 64 queries in fp32, and little beside
        assert largest[1] < 1.1 * 32 * 64 * 512 * 4
        assert largest[1] < 2.01 * largest[0], f"{encoding.name}: {largest}"
