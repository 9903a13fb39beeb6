"""Causal attention with a bias by distance on a CPU, exact and in memory linear in the number of positions.

Tiles of queries and the keys that they see go to torch's flash kernel, with their bias as a view (`hankel`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatron_mep.attention.hankel import mask_of, mask_vector
from megatron_mep.attention.tiles import block_tiles
from megatron_mep.attention.toeplitz_backward import fixed_backward, learned_backward


def toeplitz_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    *,
    scale: float,
    num_rows: int = 256,
    block_rows: int = 1024,
    learned_rows: int = 128,
) -> Tensor:
    """Causal softmax attention with `bias[h, query position - key position]` added to the scaled scores.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        bias: `[H, N]` by distance, N >= K, fp32 or wider. -inf excludes a distance; distance 0 stays finite.
        scale: Factor of the scores, usually D ** -0.5.
        num_rows: Query rows of a tile that reaches the diagonal.
        block_rows: Query rows of a tile before the diagonal; torch's kernel takes large steps from 768 on.
        learned_rows: Query rows, of all heads of a group together, of a tile in the backward pass of a learned bias.

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
    output: Tensor = _ToeplitzAttention.apply(query, key, value, bias, scale, num_rows, block_rows, learned_rows)
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
        block_rows: int,
        learned_rows: int,
    ) -> Tensor:
        output, logsumexp = _forward(query, key, value, bias, scale, num_rows, block_rows)
        ctx.save_for_backward(query, key, value, bias, output, logsumexp)
        ctx.scale, ctx.rows, ctx.learned_rows = scale, (num_rows, block_rows), learned_rows
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, output, logsumexp = ctx.saved_tensors
        inputs = (grad_output, query, key, value, bias)
        grads: tuple[Tensor | None, ...]
        if ctx.needs_input_grad[3]:
            grads = learned_backward(*inputs, ctx.scale, ctx.learned_rows)
        else:
            grads = *fixed_backward(*inputs, output, logsumexp, ctx.scale, *ctx.rows), None
        return *grads, None, None, None, None


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, num_rows: int, block_rows: int
) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each softmax's denominator, `[B, H, Q]` in fp32 or wider."""
    num_samples, num_heads, num_queries, head_size = query.shape
    num_keys, dtype = key.size(2), torch.promote_types(query.dtype, torch.float32)
    vector = mask_vector(bias, num_keys, num_rows, dtype)
    output = query.new_empty(num_queries, num_samples, num_heads, head_size).permute(1, 2, 0, 3)
    logsumexp = query.new_empty(num_samples, num_heads, num_queries, dtype=dtype)
    for tile in block_tiles(num_queries, num_keys, num_rows, block_rows):
        reversed_output, reversed_logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[:, :, tile.rows].flip(2),
            key[:, :, tile.keys],
            value[:, :, tile.keys],
            attn_mask=mask_of(tile, vector, num_keys)[None],
            scale=scale,
        )
        part = reversed_output.flip(2), reversed_logsumexp.flip(2)
        if tile.keys.start:
            part = _joined((output[:, :, tile.rows], logsumexp[:, :, tile.rows]), part)
        output[:, :, tile.rows], logsumexp[:, :, tile.rows] = part
    return output, logsumexp


def _joined(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention over the keys of both parts: outputs weighted by their share of the softmax's denominator."""
    (output, logsumexp), (other_output, other_logsumexp) = one, other
    share = torch.sigmoid(other_logsumexp - logsumexp)[..., None]
    joined = torch.lerp(output.to(share.dtype), other_output.to(share.dtype), share)
    return joined, torch.logaddexp(logsumexp, other_logsumexp)


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied only where the kernel could not read it: where its last dimension is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
