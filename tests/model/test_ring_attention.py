"""Attention around a ring of context ranks, against dense attention to the whole sequence."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatron_mep.attention.reference import dense_attention
from megatron_mep.model.ring_attention import ring_attention
from megatron_mep.parallel.context import Context
from tests.support.distributed import joined, run
from tests.support.tolerance import assert_within_budget

SAMPLES, HEADS, SIZE, SCALE = 2, 4, 8, 0.3
NAMES = ("query", "key", "value", "bias")


def leaves_of(length: int, num_groups: int, window: int | None, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values `[B, H or G, S, D]` and a bias `[H, S + 3]`, the same on every rank."""
    generator = torch.Generator().manual_seed(length)
    shapes = [(SAMPLES, heads, length, SIZE) for heads in (HEADS, num_groups, num_groups)]
    wide = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (*shapes, (HEADS, length + 3))]
    if window is not None:
        wide[3][1:, window:] = -torch.inf
    return [leaf.to(dtype).requires_grad_() for leaf in wide]


def gradients(output: Tensor, weigh: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((output * weigh).sum(), leaves))


def test_it_computes_what_dense_attention_does():
    for size in (2, 4):
        run(_dense, size, size)


def _dense(size: int) -> None:
    context = Context(joined(context=size).context_group)
    # two tiles of rows in a chunk, one of a few rows; -inf at whole blocks of distances
    for length, num_groups, window in ((2 * size * 150, 2, None), (2 * size * 5, 1, 7), (2 * size * 2, 4, None)):
        weigh = torch.randn(SAMPLES, HEADS, length, SIZE, generator=torch.Generator().manual_seed(1))
        found: dict[torch.dtype, list[Tensor]] = {}
        for dtype in (torch.float32, torch.float64):
            leaves = leaves_of(length, num_groups, window, dtype)
            output = dense_attention(*leaves, scale=SCALE)
            found[dtype] = [context.own(output.detach(), 2), *gradients(output, weigh.to(dtype), leaves)]
        leaves = leaves_of(length, num_groups, window, torch.float32)
        parts = [context.own(leaf, 2) for leaf in leaves[:3]]
        output = ring_attention(*parts, leaves[3], scale=SCALE, context=context)
        ours = gradients(output, context.own(weigh, 2), leaves)
        for gradient in ours:
            torch.distributed.all_reduce(gradient, group=context.group)
        actual = [output.detach(), *ours]
        for name, each, plain, exact in zip(("output", *NAMES), actual, found[torch.float32], found[torch.float64],
                                            strict=True):  # fmt: skip
            assert_within_budget(each, plain, exact, f"{name} of {length} tokens")


def position_bias(query_position: Tensor, key_position: Tensor, slope: Tensor, power: Tensor) -> Tensor:
    """A bias `[H, Q, K]` of both positions, whose weights all heads or each head have."""
    ratio = (query_position[:, None] - key_position).clamp(min=0) / (query_position[:, None] + 1)
    return -slope[:, None, None] * (ratio + 0.5) ** power


def dense_with_positions(query: Tensor, key: Tensor, value: Tensor, slope: Tensor, power: Tensor) -> Tensor:
    position = torch.arange(query.size(2), dtype=query.dtype)
    key, value = (each.repeat_interleave(HEADS // each.size(1), 1) for each in (key, value))
    scores = SCALE * query @ key.mT + position_bias(position, position, slope, power)
    return scores.masked_fill(position > position[:, None], -torch.inf).softmax(-1) @ value


def test_a_bias_by_positions_and_its_weights_are_those_of_dense_attention():
    for size in (2, 4):
        run(_positions, size, size)


def _positions(size: int) -> None:
    context = Context(joined(context=size).context_group)
    for length, num_groups in ((2 * size * 150, 2), (2 * size * 3, 1)):
        weigh = torch.randn(SAMPLES, HEADS, length, SIZE, generator=torch.Generator().manual_seed(1))
        found: dict[torch.dtype, list[Tensor]] = {}
        for dtype in (torch.float32, torch.float64):
            leaves = [*leaves_of(length, num_groups, None, dtype)[:3], *weights_of(dtype)]
            output = dense_with_positions(*leaves)
            found[dtype] = [context.own(output.detach(), 2), *gradients(output, weigh.to(dtype), leaves)]
        leaves = leaves_of(length, num_groups, None, torch.float32)[:3]
        slope, power = weights_of(torch.float32)
        bias = partial(position_bias, slope=slope, power=power)
        output = ring_attention(*(context.own(leaf, 2) for leaf in leaves), bias, scale=SCALE, context=context)
        ours = gradients(output, context.own(weigh, 2), [*leaves, slope, power])
        for gradient in ours:
            torch.distributed.all_reduce(gradient, group=context.group)
        names = ("output", "query", "key", "value", "slope", "power")
        for name, each, plain, exact in zip(names, [output.detach(), *ours], found[torch.float32],
                                            found[torch.float64], strict=True):  # fmt: skip
            assert_within_budget(each, plain, exact, f"{name} of {length} tokens")


def weights_of(dtype: torch.dtype) -> list[Tensor]:
    return [torch.tensor(values, dtype=dtype).requires_grad_() for values in ([0.5, 1.0, 2.0, 4.0], [0.75])]


def test_without_a_bias_it_is_plain_attention_also_in_bf16():
    run(_plain, 2)


def _plain() -> None:
    context = Context(joined(context=2).context_group)
    leaves = leaves_of(16, 2, None, torch.float32)[:3]
    expected = context.own(dense_attention(*leaves, None, scale=SCALE), 2)
    parts = [context.own(leaf, 2).bfloat16() for leaf in leaves]
    found = ring_attention(*parts, None, scale=SCALE, context=context)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), expected, atol=0.03)


LENGTH = 2048


def test_no_tensor_holds_more_than_a_share_of_the_sequence_or_a_tile_of_scores():
    run(_memory, 2)


def _memory() -> None:
    context = Context(joined(context=2).context_group)
    shapes = [(1, heads, LENGTH // 2, SIZE) for heads in (HEADS, 1, 1)]
    parts = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    bias = torch.zeros(HEADS, LENGTH, requires_grad=True)
    with Recorder() as recorder:
        ring_attention(*parts, bias, scale=SCALE, context=context).sum().backward()
    # 128 rows of scores with a chunk, twice as wide for the sums along its diagonals
    assert recorder.largest <= 4 * HEADS * 128 * (LENGTH // 4 + 128)
    assert recorder.largest < 4 * HEADS * (LENGTH // 4) ** 2


class Recorder(TorchDispatchMode):
    """Keeps the size in bytes of the largest memory that any operation's result lies in."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        sizes = [result.untyped_storage().nbytes() for result in tree_leaves(results) if isinstance(result, Tensor)]
        self.largest = max([self.largest, *sizes])
        return results
