"""Attention over mixed scores: output and all gradients against one query at a time, and no leak from the future."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.reference import distances, reference_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.encodings.base import LayerSizes, ScoreMix
from tests.attention.oracle import SCALE, Shape
from tests.attention.row_oracle import (
    assert_blind_to_the_future,
    assert_correct,
    assert_fp64_correct,
    attend_by_row,
    largest_storage,
    random_leaves,
    results_of,
)
from tests.encodings.examples import Cope, Dape
from tests.support.tolerance import assert_exact_equal

ROWS = 8


class Case(NamedTuple):
    """An encoding, and its new scores `[H, position + 1]` of one query `[H, D]`, written as in the paper."""

    encoding: ScoreMix
    of_row: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


def cope_row(scores: Tensor, query: Tensor, weights: dict[str, Tensor]) -> Tensor:
    new = torch.zeros_like(scores).tolist()
    for head, row in enumerate(scores):
        count = torch.zeros((), dtype=scores.dtype)
        for key in range(len(row) - 1, -1, -1):
            count = count + torch.sigmoid(row[key])
            place = count.clamp(max=Cope().num_positions - 1)
            below = int(place)
            pair = weights["embedding"][:, below : below + 2].T @ (SCALE * query[head])
            new[head][key] = row[key] + pair[0] + (place - below) * (pair[-1] - pair[0])
    return torch.stack([torch.stack(row) for row in new])


def dape_row(scores: Tensor, query: Tensor, weights: dict[str, Tensor]) -> Tensor:
    num_keys = scores.size(1)
    distance = torch.arange(num_keys - 1, -1, -1, dtype=scores.dtype)
    bias = -weights["slope"][:, None] * distance
    both = torch.cat((scores, bias))
    nothing = torch.zeros_like(both[:, 0])

    def around(columns: list[Tensor], key: int, default: Tensor) -> Tensor:
        near = [columns[at] if 0 <= at < len(columns) else default for at in (key - 1, key, key + 1)]
        return torch.stack(near, dim=-1)

    columns = list(both.unbind(1))
    hidden = [
        functional.leaky_relu((weights["inner"][:, :, 0] * around(columns, key, nothing)).sum((1, 2)))
        for key in range(num_keys + 1)
    ]
    mixed = [
        (weights["outer"][:, :, 0] * around(hidden, key, torch.zeros_like(hidden[0]))).sum((1, 2))
        for key in range(num_keys)
    ]
    return scores + bias + torch.stack(mixed, dim=1)


CASES = (Case(Cope(), cope_row), Case(Dape(), dape_row))
every = pytest.mark.parametrize("case", CASES, ids=["cope", "dape"])


def leaves_of(case: Case, shape: Shape, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    sizes = LayerSizes(num_heads=shape.heads, hidden_size=1, head_size=shape.head_size)
    weights = case.encoding.layer_weights(sizes, torch.Generator().manual_seed(2))
    return random_leaves(shape, dtype, **{name: weight.value for name, weight in weights.items()})


def split(leaves: dict[str, Tensor]) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
    weights = dict(leaves)
    return (weights.pop("query"), weights.pop("key"), weights.pop("value")), weights


def attend(case: Case, leaves: dict[str, Tensor], num_rows: int = ROWS) -> Tensor:
    inputs, weights = split(leaves)
    return score_mix_attention(*inputs, partial(case.encoding.of_scores, **weights), scale=SCALE, num_rows=num_rows)


def plainly(case: Case, leaves: dict[str, Tensor]) -> Tensor:
    """The whole matrix at once; what is mixed is fp32 or wider, as by the code under test."""
    (query, key, value), weights = split(leaves)
    num_queries, num_keys = query.size(2), key.size(2)
    query, key = query * SCALE, key.repeat_interleave(query.size(1) // key.size(1), dim=1)
    dtype = torch.promote_types(query.dtype, torch.float32)
    position = torch.arange(num_keys, dtype=dtype)
    future = distances(num_queries, num_keys) < 0
    scores = (query @ key.mT).to(dtype).masked_fill(future, 0)
    new = case.encoding.of_scores(scores, query.to(dtype), position[num_keys - num_queries :], position, **weights)
    probs = new.masked_fill(future, -torch.inf).softmax(-1).to(value.dtype)
    return probs @ value.repeat_interleave(query.size(1) // value.size(1), dim=1)


def by_row(case: Case, leaves: dict[str, Tensor]) -> Tensor:
    (query, key, value), weights = split(leaves)
    first = key.size(2) - query.size(2)

    def mixed(sample: int, position: int, scores: Tensor) -> Tensor:
        return case.of_row(scores, query[sample, :, position - first], weights)

    return attend_by_row(query, key, value, mixed)


def check(case: Case, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
    assert_correct(leaves_of(case, shape, dtype), *(partial(each, case) for each in (attend, plainly, by_row)))


@every
@pytest.mark.parametrize("length", [1, 8, 9, 20])
def test_matches_one_query_at_a_time(length, case):
    check(case, Shape(2, 2, 2, length, length))


@every
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, 11])
def test_heads_share_keys_and_queries_stand_at_the_end_of_them(queries, groups, case):
    check(case, Shape(1, 4, groups, queries, 12))


@every
def test_fp64_keeps_its_precision(case):
    assert_fp64_correct(leaves_of(case, Shape(2, 4, 2, 12, 15)), partial(attend, case), partial(by_row, case))


def test_bf16_beyond_256_positions():
    check(CASES[1], Shape(1, 2, 1, 3, 300), torch.bfloat16)


@every
@pytest.mark.parametrize("position", [0, 6, 7, 8, 38])
def test_no_output_depends_on_the_future(position, case):
    assert_blind_to_the_future(partial(attend, case), leaves_of(case, Shape(2, 4, 2, 40, 40)), position)


def shifted(scores: Tensor, query: Tensor, query_position: Tensor, key_position: Tensor) -> Tensor:
    """The score of the next key, in the future of a query for the key that is itself."""
    return functional.pad(scores[..., 1:], (0, 1))


def summed(scores: Tensor, query: Tensor, query_position: Tensor, key_position: Tensor) -> Tensor:
    """A constant of the row, large and other for each future; and each key's own score."""
    return scores * (1 + scores.sum(-1, keepdim=True))


@pytest.mark.parametrize("mix", [shifted, summed])
@pytest.mark.parametrize("position", [0, 7, 20])
def test_a_mix_that_looks_ahead_sees_zeros(position, mix):
    leaves = random_leaves(Shape(1, 2, 2, 40, 40))

    def attend(leaves: dict[str, Tensor]) -> Tensor:
        return score_mix_attention(leaves["query"], leaves["key"], leaves["value"], mix, scale=SCALE, num_rows=ROWS)

    assert_blind_to_the_future(attend, leaves, position)


@pytest.mark.parametrize("future", [1e30, torch.inf])
def test_what_a_mix_says_of_the_future_is_not_read(future):
    query, key, value = random_leaves(Shape(1, 2, 2, 40, 40)).values()

    def mix(scores: Tensor, query: Tensor, query_position: Tensor, key_position: Tensor) -> Tensor:
        return scores.masked_fill(key_position > query_position[:, None], future)

    actual = score_mix_attention(query, key, value, mix, scale=SCALE, num_rows=ROWS)
    torch.testing.assert_close(actual, reference_attention(query, key, value, None, scale=SCALE))


def test_a_mix_may_keep_or_overwrite_what_it_is_given():
    query, key, value = random_leaves(Shape(1, 2, 2, 40, 40)).values()

    def kept(scores: Tensor, *_: Tensor) -> Tensor:
        return scores

    def overwritten(scores: Tensor, *_: Tensor) -> Tensor:
        return scores.mul_(1.0)

    one, other = (score_mix_attention(query, key, value, mix, scale=SCALE) for mix in (kept, overwritten))
    assert_exact_equal(one, other)
    torch.testing.assert_close(one, reference_attention(query, key, value, None, scale=SCALE))


@every
def test_one_chunk_or_many_are_the_same(case):
    leaves = leaves_of(case, Shape(1, 4, 2, 40, 40))
    one, many = (results_of(partial(attend, case, num_rows=rows), leaves) for rows in (64, 7))
    for name, expected in one.items():
        torch.testing.assert_close(many[name], expected, rtol=1e-4, atol=1e-5, msg=name)


def test_memory_is_linear_in_the_length():
    cope, dape = CASES
    shape = Shape(1, 4, 2, 512, 512)
    # scores of a chunk, all heads
    assert largest_storage(partial(attend, cope, num_rows=64), leaves_of(cope, shape)) <= 4 * 64 * 512
    # scores and biases of a chunk together, all heads
    assert largest_storage(partial(attend, dape, num_rows=64), leaves_of(dape, shape)) <= 2 * 4 * 64 * 513


def test_new_scores_of_another_shape_are_told():
    query, key, value = random_leaves(Shape(1, 2, 2, 5, 5)).values()
    with pytest.raises(AssertionError, match=r"mixed scores \(1, 2, 5, 4\), not \(1, 2, 5, 5\)"):
        score_mix_attention(query, key, value, lambda scores, *_: scores[..., 1:], scale=SCALE)
