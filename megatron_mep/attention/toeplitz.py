"""Causal attention with a bias by distance on a CPU, exact and in memory linear in the number of positions.

Chunks of queries go to torch's flash kernel, with the keys that they see and their bias as a view (`hankel`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatron_mep.attention.hankel import chunks, mask_of, mask_vector
from megatron_mep.attention.toeplitz_backward import fixed_backward, learned_backward


def toeplitz_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    *,
    scale: float,
    num_rows: int = 256,
    learned_rows: int = 128,
) -> Tensor:
    """Causal softmax attention with `bias[h, query position - key position]` added to the scaled scores.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        bias: `[H, N]` by distance, N >= K, fp32 or wider. -inf excludes a distance; distance 0 stays finite.
        scale: Factor of the scores, usually D ** -0.5.
        num_rows: Query rows of a chunk.
        learned_rows: Query rows, of all heads of a group together, of a chunk in the backward pass of a learned bias.

    Returns:
        `[B, H, Q, D]`, in memory `[Q, B, H, D]`.
    """
    num_heads, num_queries, num_keys = query.size(1), query.size(2), key.size(2)
    assert query.device.type == "cpu", f"toeplitz attention computes on a CPU, not on {query.device}"
    assert num_heads % key.size(1) == 0, f"{num_heads} heads do not split over {key.size(1)} groups"
    assert num_queries <= num_keys, f"{num_queries} queries cannot be the last of {num_keys} positions"
    assert bias.size(0) == num_heads, f"bias of {bias.size(0)} heads for {num_heads}"
    assert bias.size(1) >= num_keys, f"bias ends at distance {bias.size(1) - 1}, before {num_keys} positions"
    assert bias.dtype in (torch.float32, torch.float64), f"a bias is fp32 or wider, not {bias.dtype}"
    query, key, value = (_with_dense_rows(tensor) for tensor in (query, key, value))
    output: Tensor = _ToeplitzAttention.apply(query, key, value, bias, scale, num_rows, learned_rows)
    return output


class _ToeplitzAttention(torch.autograd.Function):
    """Both passes by hand: autograd would make a mask that learns as large as the scores, and its gradient too."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        scale: float,
        num_rows: int,
        learned_rows: int,
    ) -> Tensor:
        output, logsumexp = _forward(query, key, value, bias, scale, num_rows)
        ctx.save_for_backward(query, key, value, bias, output, logsumexp)
        ctx.scale, ctx.num_rows, ctx.learned_rows = scale, num_rows, learned_rows
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, output, logsumexp = ctx.saved_tensors
        inputs = (grad_output, query, key, value, bias)
        if ctx.needs_input_grad[3]:
            return *learned_backward(*inputs, scale=ctx.scale, num_rows=ctx.learned_rows), None, None, None
        grads = fixed_backward(*inputs, output, logsumexp, scale=ctx.scale, num_rows=ctx.num_rows)
        return *grads, None, None, None, None


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, num_rows: int
) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each softmax's denominator, `[B, H, Q]` in fp32 or wider."""
    num_samples, num_heads, num_queries, head_size = query.shape
    num_keys, dtype = key.size(2), torch.promote_types(query.dtype, torch.float32)
    vector = mask_vector(bias, num_keys, num_rows, dtype)
    output = query.new_empty(num_queries, num_samples, num_heads, head_size).permute(1, 2, 0, 3)
    logsumexp = query.new_empty(num_samples, num_heads, num_queries, dtype=dtype)
    for chunk in chunks(num_queries, num_keys, num_rows):
        reversed_output, reversed_logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[:, :, chunk.rows].flip(2),
            key[:, :, : chunk.num_keys],
            value[:, :, : chunk.num_keys],
            attn_mask=mask_of(chunk, vector, num_keys)[None],
            scale=scale,
        )
        output[:, :, chunk.rows] = reversed_output.flip(2)
        logsumexp[:, :, chunk.rows] = reversed_logsumexp.flip(2)
    return output, logsumexp


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied only where the kernel could not read it: where its last dimension is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
