"""Causal attention while keys and values travel around the ring of context ranks, twice: forward and backward."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatron_mep.attention.hankel import mask_vector
from megatron_mep.attention.ring import NUM_ROWS, Biases, Block, Gradients, Rows
from megatron_mep.parallel.context import Context
from megatron_mep.parallel.passing import Passing


def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, scale: float, context: Context
) -> Tensor:
    """Softmax attention of this rank's queries to the keys of all ranks, computed in fp32 or wider.

    Memory is linear in this rank's part of the sequence in both passes: a share of keys and values, and in the backward
    pass their gradients with them, are here only while they are computed with.

    Args:
        query: `[B, H, S / N, D]`: the two chunks of this rank.
        key: `[B, G, S / N, D]`; head h reads group h // (H // G).
        value: `[B, G, S / N, E]`.
        bias: By distance, `[H, S]` in fp32 or wider, -inf to exclude; `None` for none.
        scale: Factor of the scores, usually D ** -0.5.
        context: The ranks of the ring.

    Returns:
        `[B, H, S / N, E]` in the query's type.
    """
    if bias is None:
        bias = query.new_zeros(1, query.size(2) * context.size, dtype=torch.float32).expand(query.size(1), -1)
    output: Tensor = _RingAttention.apply(query, key, value, bias, scale, context)
    return output


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, context: Context
    ) -> Tensor:
        dtype = torch.promote_types(query.dtype, torch.float32)
        biases = _biases(bias, query.size(2) * context.size, dtype)
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
        ctx.save_for_backward(query, key, value, bias, output, logsumexp)
        ctx.scale, ctx.context = scale, context
        return output.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, output, logsumexp = ctx.saved_tensors
        scale, context, dtype = ctx.scale, ctx.context, output.dtype
        biases = _biases(bias, query.size(2) * context.size, dtype)
        rows = Rows(query.to(dtype) * scale, output, logsumexp)
        grad = grad_output.to(dtype)
        expected = torch.linalg.vecdot(grad, output)
        grad_query = torch.zeros_like(query, dtype=dtype)
        grad_vector = torch.zeros_like(biases.vector) if ctx.needs_input_grad[3] else None
        here = [key, value]
        grads_here = [torch.zeros_like(each, dtype=dtype) for each in here]
        for step in range(context.size):
            passing = Passing(here, context) if step < context.size - 1 else None
            key_here, value_here = (each.to(dtype) for each in here)
            gradients = Gradients(grad_query, grads_here[0], grads_here[1], grad_vector)
            for block in _blocks(context, step, query.size(2)):
                gradients.add(block, rows, key_here, value_here, biases, grad, expected)
            # once around, they are at home
            grads_here = Passing(grads_here, context).arrived()
            here = passing.arrived() if passing else here
        grad_key, grad_value = grads_here
        grad_bias = None
        if grad_vector is not None:
            grad_bias = torch.zeros_like(bias)
            num_keys = biases.num_keys
            grad_bias[:, :num_keys] = grad_vector[:, :num_keys].flip(1)
        return (
            (grad_query * scale).to(query.dtype),
            grad_key.to(key.dtype),
            grad_value.to(value.dtype),
            grad_bias,
            None,
            None,
        )


def _biases(bias: Tensor, num_keys: int, dtype: torch.dtype) -> Biases:
    return Biases(mask_vector(bias, num_keys, NUM_ROWS, dtype), num_keys)


def _blocks(context: Context, step: int, num_queries: int) -> Iterator[Block]:
    """The chunks that meet when keys have been passed on `step` times: queries and keys that are not after them."""
    size = num_queries // 2
    source = (context.rank - step) % context.size
    halves = slice(0, size), slice(size, 2 * size)
    for number, queries in zip(context.chunks, halves, strict=True):
        for other, keys in zip(context.chunks_of(source), halves, strict=True):
            if other <= number:
                yield Block(queries, keys, number * size, other * size)
