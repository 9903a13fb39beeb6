"""Attention with a bias by positions: output and all gradients against one query at a time, and what it may cost."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_mep.attention.position_bias import position_bias_attention
from megatron_mep.attention.reference import reference_attention
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
from tests.encodings.examples import Fire

ROWS = 8
FIRE = Fire()


def leaves_of(shape: Shape, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    weights = FIRE.weights(shape.heads, torch.Generator().manual_seed(2))
    return random_leaves(shape, dtype, **{name: weight.value for name, weight in weights.items()})


def split(leaves: dict[str, Tensor]) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
    weights = dict(leaves)
    return (weights.pop("query"), weights.pop("key"), weights.pop("value")), weights


def attend(leaves: dict[str, Tensor], num_rows: int = ROWS) -> Tensor:
    inputs, weights = split(leaves)
    return position_bias_attention(*inputs, partial(FIRE.of_positions, **weights), scale=SCALE, num_rows=num_rows)


def plainly(leaves: dict[str, Tensor]) -> Tensor:
    inputs, weights = split(leaves)
    num_queries, num_keys = inputs[0].size(2), inputs[1].size(2)
    position = torch.arange(num_keys, dtype=weights["c"].dtype)
    bias = FIRE.of_positions(position[num_keys - num_queries :], position, **weights)
    return reference_attention(*inputs, bias, scale=SCALE)


def by_row(leaves: dict[str, Tensor]) -> Tensor:
    inputs, weights = split(leaves)

    def biased(sample: int, position: int, scores: Tensor) -> Tensor:
        return scores + torch.stack([fire(position, key, weights) for key in range(position + 1)], dim=1)

    return attend_by_row(*inputs, biased)


def fire(query: int, key: int, weights: dict[str, Tensor]) -> Tensor:
    """The bias `[H]` of one pair, written as in the paper."""
    threshold = FIRE.threshold * weights["multiplier"]
    normaliser = torch.log(weights["c"] * (threshold if threshold > query else query) + 1) + 1e-6
    ratio = torch.log(weights["c"] * (query - key) + 1) / normaliser
    hidden = (weights["inner"] * ratio + weights["inner_bias"]).clamp(min=0)
    return weights["outer"] @ hidden


@pytest.mark.parametrize("length", [1, 7, 8, 9, 20])
def test_matches_one_query_at_a_time(length):
    assert_correct(leaves_of(Shape(2, 2, 2, length, length)), attend, plainly, by_row)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, 11])
def test_heads_share_keys_and_queries_stand_at_the_end_of_them(queries, groups):
    assert_correct(leaves_of(Shape(2, 4, groups, queries, 12)), attend, plainly, by_row)


def test_fp64_keeps_its_precision():
    assert_fp64_correct(leaves_of(Shape(2, 4, 2, 12, 15)), attend, by_row)


def test_bf16_beyond_256_positions():
    assert_correct(leaves_of(Shape(1, 2, 1, 3, 300), torch.bfloat16), attend, plainly, by_row)


def test_gradients_of_bf16_are_summed_in_fp32():
    leaves = leaves_of(Shape(1, 2, 1, 100, 100), torch.bfloat16)
    coarse, fine = (results_of(partial(attend, num_rows=rows), leaves) for rows in (100, 1))
    for name, gradient in coarse.items():
        # a sum rounded to bf16 after each of 100 chunks is off by more than a unit in the last place
        torch.testing.assert_close(fine[name], gradient, rtol=2**-7, atol=1e-5, msg=name)


def test_views_by_position_give_the_same():
    leaves = leaves_of(Shape(2, 4, 2, 18, 20))
    for name in ("query", "key", "value"):
        by_position = leaves[name].detach().permute(2, 0, 1, 3).contiguous()
        leaves[name] = by_position.permute(1, 2, 0, 3).requires_grad_()
        assert not leaves[name].is_contiguous()
    assert_correct(leaves, attend, plainly, by_row)


@pytest.mark.parametrize("position", [0, 6, 7, 8, 38])
def test_no_output_depends_on_the_future(position):
    assert_blind_to_the_future(attend, leaves_of(Shape(2, 4, 2, 40, 40)), position)


@pytest.mark.parametrize("future", [1e30, torch.inf])
def test_a_bias_in_the_future_is_not_read(future):
    leaves = leaves_of(Shape(1, 2, 2, 40, 40))
    (query, key, value), _ = split(leaves)

    def bias_of(query_position: Tensor, key_position: Tensor) -> Tensor:
        distance = (query_position[:, None] - key_position).expand(2, -1, -1)
        return (-0.1 * distance).masked_fill(distance < 0, future)

    actual = position_bias_attention(query, key, value, bias_of, scale=SCALE, num_rows=ROWS)
    falling = bias_of(torch.arange(40.0), torch.arange(40.0)).masked_fill(torch.ones(40, 40).triu(1) > 0, 0)
    torch.testing.assert_close(actual, reference_attention(query, key, value, falling, scale=SCALE))


@pytest.mark.parametrize("length", [512, 1024])
def test_memory_is_linear_in_the_length(length):
    largest = largest_storage(partial(attend, num_rows=64), leaves_of(Shape(1, 4, 2, length, length)))
    # scores of a chunk for the 4 heads, or its hidden layer of width 4
    assert largest <= 4 * 64 * length


def test_nothing_of_a_chunk_outlives_it():
    leaves = leaves_of(Shape(1, 4, 2, 512, 512))
    with Kept() as kept:
        output = attend(leaves, num_rows=64)
    assert output.requires_grad
    # scaled queries, each chunk's output and all outputs together; the scores of all chunks are 64 times an output
    assert kept.numel <= 3.1 * output.numel()


class Kept(TorchDispatchMode):
    """Counts the numbers in all storages made inside that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[StorageWeakRef, int]] = []

    def __torch_dispatch__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            storage = result.untyped_storage()
            self.made.append((StorageWeakRef(storage), storage.nbytes() // result.element_size()))
        return result

    @property
    def numel(self) -> int:
        alive = {reference.cdata: size for reference, size in self.made if not reference.expired()}
        return sum(alive.values())


def test_keys_are_not_repeated_for_the_heads_of_a_group():
    leaves = leaves_of(Shape(1, 16, 1, 1, 2048))
    assert largest_storage(attend, leaves) < 16 * leaves["key"].numel() / 2


def test_evaluation_keeps_no_graph():
    leaves = leaves_of(Shape(1, 2, 2, 20, 20))
    with torch.no_grad():
        assert not attend(leaves).requires_grad


@pytest.mark.parametrize(
    ("shape", "broken"),
    [
        (Shape(1, 3, 2, 5, 5), "3 heads do not split over 2 groups"),
        (Shape(1, 2, 2, 6, 5), "6 queries cannot be the last of 5 positions"),
    ],
)
def test_broken_calls_are_told(shape, broken):
    with pytest.raises(AssertionError, match=broken):
        attend(leaves_of(shape))


def test_a_bias_of_another_shape_is_told():
    (query, key, value), _ = split(leaves_of(Shape(1, 2, 2, 5, 5)))
    with pytest.raises(AssertionError, match=r"bias \(5, 5\) for scores \(1, 2, 5, 5\)"):
        position_bias_attention(query, key, value, lambda *_: torch.zeros(5, 5), scale=SCALE)
