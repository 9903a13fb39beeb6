"""Causal attention while keys and values travel around the ring of context ranks, twice: forward and backward."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatron_mep.attention.ring import NUM_ROWS, Block, Gradients, Rows
from megatron_mep.attention.tile_biases import DistanceBiases, PositionBiases, TileBiases
from megatron_mep.parallel.context import Context
from megatron_mep.parallel.passing import Passing

Acting = Tensor | partial[Tensor] | None


def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Acting, *, scale: float, context: Context
) -> Tensor:
    """Softmax attention of this rank's queries to the keys of all ranks, computed in fp32 or wider.

    Memory is linear in this rank's part of the sequence in both passes: a share of keys and values, and in the backward
    pass their gradients with them, are here only while they are computed with.

    Args:
        query: `[B, H, S / N, D]`: the two chunks of this rank.
        key: `[B, G, S / N, D]`; head h reads group h // (H // G).
        value: `[B, G, S / N, E]`.
        bias: By distance, `[H, S]` in fp32 or wider, -inf to exclude; a function of the positions of queries and keys,
            its weights bound by name; `None` for none.
        scale: Factor of the scores, usually D ** -0.5.
        context: The ranks of the ring.

    Returns:
        `[B, H, S / N, E]` in the query's type.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    num_keys = query.size(2) * context.size
    if bias is None:
        bias = query.new_zeros(1, num_keys, dtype=torch.float32).expand(query.size(1), -1)
    biases_of: Callable[..., TileBiases]
    if isinstance(bias, Tensor):
        biases_of, weights = partial(DistanceBiases, num_keys=num_keys, num_rows=NUM_ROWS, dtype=dtype), [bias]
    else:
        biases_of, weights = (
            partial(_of_positions, bias.func, tuple(bias.keywords), dtype),
            list(bias.keywords.values()),
        )
    output: Tensor = _RingAttention.apply(query, key, value, biases_of, scale, context, *weights)
    return output


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        biases_of: Callable[..., TileBiases],
        scale: float,
        context: Context,
        *weights: Tensor,
    ) -> Tensor:
        dtype = torch.promote_types(query.dtype, torch.float32)
        biases = biases_of(*weights)
        output = query.new_zeros(*query.shape[:3], value.size(-1), dtype=dtype)
        logsumexp = query.new_full(query.shape[:3], -torch.inf, dtype=dtype)
        rows = Rows(query.to(dtype) * scale, output, logsumexp)
        here = [key, value]
        for step in range(context.size):
            passing = Passing(here, context) if step < context.size - 1 else None
            key_here, value_here = (each.to(dtype) for each in here)
            for block in _blocks(context, step, query.size(2)):
                rows.attend(block, key_here, value_here, biases)
            here = passing.arrived() if passing else here
        ctx.save_for_backward(query, key, value, output, logsumexp, *weights)
        ctx.biases_of, ctx.scale, ctx.context = biases_of, scale, context
        return output.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, logsumexp, *weights = ctx.saved_tensors
        scale, context, dtype = ctx.scale, ctx.context, output.dtype
        biases = ctx.biases_of(*weights)
        needed = ctx.needs_input_grad[-len(weights) :]
        rows = Rows(query.to(dtype) * scale, output, logsumexp)
        grad = grad_output.to(dtype)
        expected = torch.linalg.vecdot(grad, output)
        grad_query = torch.zeros_like(query, dtype=dtype)
        here = [key, value]
        grads_here = [torch.zeros_like(each, dtype=dtype) for each in here]
        for step in range(context.size):
            passing = Passing(here, context) if step < context.size - 1 else None
            key_here, value_here = (each.to(dtype) for each in here)
            gradients = Gradients(grad_query, grads_here[0], grads_here[1], any(needed))
            for block in _blocks(context, step, query.size(2)):
                gradients.add(block, rows, key_here, value_here, biases, grad, expected)
            # once around, they are at home
            grads_here = Passing(grads_here, context).arrived()
            here = passing.arrived() if passing else here
        grad_key, grad_value = grads_here
        of_weights = biases.gradients() if any(needed) else [None] * len(weights)
        return (
            (grad_query * scale).to(query.dtype),
            grad_key.to(key.dtype),
            grad_value.to(value.dtype),
            None,
            None,
            None,
            *(found if wanted else None for found, wanted in zip(of_weights, needed, strict=True)),
        )


def _of_positions(
    bias_of: Callable[..., Tensor], names: tuple[str, ...], dtype: torch.dtype, *weights: Tensor
) -> TileBiases:
    return PositionBiases(bias_of, dict(zip(names, weights, strict=True)), dtype)


def _blocks(context: Context, step: int, num_queries: int) -> Iterator[Block]:
    """The chunks that meet when keys have been passed on `step` times: queries and keys that are not after them."""
    size = num_queries // 2
    source = (context.rank - step) % context.size
    halves = slice(0, size), slice(size, 2 * size)
    for number, queries in zip(context.chunks, halves, strict=True):
        for other, keys in zip(context.chunks_of(source), halves, strict=True):
            if other <= number:
                yield Block(queries, keys, number * size, other * size)
