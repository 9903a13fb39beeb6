"""What the formula of every encoding promises: numbers that stay numbers, gradients, heads that divide."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.base import (
    DistanceBias,
    Encoding,
    KeyBias,
    PairScores,
    PositionBias,
    Rotation,
    ScoreMix,
)
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Embedded, Placed
from tests.every_encoding.case import Case
from tests.every_encoding.layer import HEAD_SIZE, attend, placed, random, sizes_of, vectors_of, weights_of

FARTHEST = 131_071
"""The largest distance in a sequence of 2^17 tokens."""
SPREAD = [0, 1, 2, 3, 7, 15, 31, 63, 127, 255, 511, 1023]
LENGTH = 17

learning = pytest.mark.cases_that.with_args(lambda case: case.encoding.learned)


def learned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if weight.requires_grad}


@pytest.mark.kind.with_args(DistanceBias)
def test_bias_is_finite_and_falls_as_claimed_to_the_farthest_distance(case: Case) -> None:
    assert isinstance(case.encoding, DistanceBias)
    distance = torch.arange(FARTHEST + 1, dtype=torch.float32)
    for num_heads in case.heads:
        weights = weights_of(case.encoding, num_heads)
        bias = case.encoding.of_distance(distance, **weights).detach()
        assert bias.dtype == torch.float32
        assert bias.shape[1:] == distance.shape
        assert len(bias) in (1, num_heads), "of every head, or one for all"
        assert bias.isfinite().all()
        # fp32 rounds either way by units in the last place
        slack = bias.abs()[:, 1:] * 4 * torch.finfo(torch.float32).eps
        assert not case.falls or (bias.diff() <= slack).all()
        assert not case.distinct or (bias.diff() < 0).all()
        wide = case.encoding.of_distance(distance.double(), **weights).detach()
        assert wide.dtype == torch.float64
        assert not case.falls or (wide.diff() <= 0).all()
        assert not case.zero_at_zero or (wide[:, 0].abs() < 1e-15).all()


@pytest.mark.kind.with_args(DistanceBias)
def test_bias_has_the_wider_of_fp32_and_the_distances_type(case: Case) -> None:
    assert isinstance(case.encoding, DistanceBias)
    num_heads = case.heads[-1]
    weights = weights_of(case.encoding, num_heads)
    wide, narrow = (
        case.encoding.of_distance(torch.tensor(SPREAD, dtype=dtype), **weights).detach()
        for dtype in (torch.float64, torch.float32)
    )
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-5)
    weights = weights_of(case.encoding, num_heads, torch.float64)
    widened = case.encoding.of_distance(torch.tensor(SPREAD).double(), **weights)
    assert widened.equal(wide), "all of the formula is computed in fp64, the weights' part too"


def test_numbers_and_gradients_stay_finite_at_the_farthest_positions(case: Case) -> None:
    """Of some queries at the end of 2^17 positions, and keys spread over all of them."""
    encoding, num_heads = case.encoding, case.heads[0]
    weights = weights_of(encoding, num_heads)
    at_key = torch.cat(
        (torch.tensor(SPREAD), torch.arange(1024, FARTHEST - 8, 4093), FARTHEST - torch.arange(8).flip(0))
    )
    at_query = at_key[-4:]
    results = _results_at(encoding, weights, num_heads, at_query, at_key)
    if isinstance(encoding, Embedded):
        declared = encoding.embedding_weights(sizes_of(num_heads), torch.Generator().manual_seed(7))
        at_embeddings = {name: weight.value.requires_grad_(weight.learned) for name, weight in declared.items()}
        results.append(encoding.added(placed(encoding, at_key), num_heads * HEAD_SIZE, **at_embeddings))
        weights |= at_embeddings
    for result in results:
        assert result.dtype == torch.float32
        assert result.isfinite().all()
    trained = learned(weights)
    if not trained:
        return
    # signs vary, so that no two gradients cancel by rule
    total = torch.stack([(each * random(*each.shape, seed=9, dtype=torch.float32)).sum() for each in results]).sum()
    gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    for name, gradient in zip(trained, gradients, strict=True):
        assert gradient is None or gradient.isfinite().all(), name


def _results_at(
    encoding: Encoding, weights: dict[str, Tensor], num_heads: int, at_query: Tensor, at_key: Tensor
) -> list[Tensor]:
    """All that the encoding makes of random heads at these positions."""
    query, key = (
        random(1, num_heads, len(at), HEAD_SIZE, seed=seed, dtype=torch.float32)
        for seed, at in enumerate((at_query, at_key))
    )
    query_position, key_position = (placed(encoding, at) for at in (at_query, at_key))
    turned = [
        encoding.turned(heads.permute(2, 0, 1, 3), position, **weights)
        for heads, position in ((query, query_position), (key, key_position))
        if isinstance(encoding, Rotation)
    ]
    match encoding:
        case Carried():
            states = encoding.initial(key_position, HEAD_SIZE)[:, None, None].expand(-1, 1, num_heads, -1)
            hidden = random(len(at_key), 1, num_heads * HEAD_SIZE, dtype=torch.float32)
            states = encoding.updated(states, states.cumsum(0) / len(states), hidden, **weights)
            return [states, encoding.turned(key.permute(2, 0, 1, 3), states)]
        case DistanceBias():
            distance = (query_position[:, None] - key_position).clamp(min=0)
            return [*turned, encoding.of_distance(distance, **weights)]
        case PositionBias():
            return [encoding.of_positions(query_position, key_position, **weights)]
        case KeyBias():
            hidden = random(len(at_key), 1, num_heads * HEAD_SIZE, dtype=torch.float32)
            gain = encoding.gain(hidden, **weights)
            return [encoding.increments(hidden, **weights), *([] if gain is None else [gain])]
        case ScoreMix():
            scores = (query @ key.mT).masked_fill(key_position > query_position[:, None], 0)
            return [encoding.of_scores(scores, query, query_position, key_position, **weights)]
        case PairScores():
            seen = at_key <= at_query[:, None]
            return [encoding.of_pairs(query, key, query_position, key_position, **weights).where(seen, 0)]
    return turned


@learning
def test_gradients_reach_every_head_and_are_finite(case: Case) -> None:
    num_heads = case.heads[0]
    weights = weights_of(case.encoding, num_heads)
    hidden = random(4 * LENGTH, 2, num_heads * HEAD_SIZE, dtype=torch.float32)
    output = attend(case.encoding, hidden, weights, num_heads)
    (output * random(*output.shape, seed=3, dtype=torch.float32)).sum().backward()
    declared = case.encoding.layer_weights(sizes_of(num_heads), torch.Generator())
    for name, weight in learned(weights).items():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        size = weight.grad.abs()
        reached = size.reshape(len(size), -1).amax(1) if declared[name].per_head else size.max()[None]
        assert (reached > 0).all() or case.starts_at_rest, f"{name}: a head never learns"


@learning
def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    num_heads = case.heads[0]
    weights, hidden = weights_of(case.encoding, num_heads, torch.float64), random(9, 1, num_heads * HEAD_SIZE)
    trained = learned(weights)

    def output(hidden: Tensor, *values: Tensor) -> Tensor:
        return attend(case.encoding, hidden, weights | dict(zip(trained, values, strict=True)), num_heads)

    assert torch.autograd.gradcheck(output, (hidden.requires_grad_(), *trained.values()), fast_mode=True)


def test_it_acts(case: Case) -> None:
    """Keys in another order give another output, or positions other vectors, unless the encoding is none."""
    num_heads = case.heads[0]
    hidden = random(LENGTH, 1, num_heads * HEAD_SIZE)
    if not case.acts:
        return
    vectors = vectors_of(case.encoding, num_heads, LENGTH)
    if vectors is not None:
        assert (vectors.diff(dim=-2).abs().amax(-1) > 1e-9).any(), "the same vector is added at every position"
        return
    weights = weights_of(case.encoding, num_heads, torch.float64)
    swapped = torch.cat((hidden[:-1].flip(0), hidden[-1:]))
    first, second = (attend(case.encoding, each, weights, num_heads)[:, :, -1] for each in (hidden, swapped))
    assert (first - second).abs().max() > 1e-9, "the last query does not know in which order its keys came"


def test_heads_of_a_rank_are_a_slice_of_the_whole(case: Case) -> None:
    for num_heads in case.heads:
        weights = weights_of(case.encoding, num_heads, torch.float64)
        declared = case.encoding.layer_weights(sizes_of(num_heads), torch.Generator())
        hidden = random(LENGTH, 2, num_heads * HEAD_SIZE)
        whole = attend(case.encoding, hidden, weights, num_heads)
        for size in case.tensor_sizes:
            for rank in range(size):
                heads = slice(rank * num_heads // size, (rank + 1) * num_heads // size)
                own = {name: weight[heads] if declared[name].per_head else weight for name, weight in weights.items()}
                part = attend(case.encoding, hidden, own, num_heads, heads)
                torch.testing.assert_close(part, whole[:, heads], rtol=1e-12, atol=1e-12)


def test_formula_writes_to_no_weight(case: Case) -> None:
    num_heads = case.heads[0]
    weights = weights_of(case.encoding, num_heads)
    before = {name: (weight.detach().clone(), weight._version) for name, weight in weights.items()}
    attend(case.encoding, random(LENGTH, 1, num_heads * HEAD_SIZE, dtype=torch.float32), weights, num_heads)
    for name, weight in weights.items():
        assert weight.equal(before[name][0])
        assert weight._version == before[name][1]


@pytest.mark.kind.with_args(Rotation)
@pytest.mark.cases_that.with_args(lambda case: not isinstance(case.encoding, Placed))
def test_angles_have_the_wider_of_fp32_and_the_positions_type(case: Case) -> None:
    assert isinstance(case.encoding, Rotation)
    angles = partial(case.encoding.angles, head_size=16, **weights_of(case.encoding, case.heads[0]))
    wide, narrow = (angles(torch.tensor(SPREAD, dtype=dtype)).detach() for dtype in (torch.float64, torch.float32))
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert wide.shape == (len(SPREAD), 8)
    turn = torch.polar(torch.ones_like(wide), narrow.double() - wide)
    torch.testing.assert_close(turn, torch.ones_like(turn), rtol=0, atol=1e-4)
    assert math.isfinite(float(narrow.abs().max()))
