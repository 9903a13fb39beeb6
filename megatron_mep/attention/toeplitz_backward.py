"""Gradients of toeplitz attention, for a bias that is fixed and for one that learns."""

import torch
from torch import Tensor

from megatron_mep.attention.hankel import diagonal_sums, mask_of, mask_vector
from megatron_mep.attention.tiles import block_tiles, row_tiles

BLOCK_BYTES_PER_THREAD = 2 * 2**20
"""Size of the block of scores that `learned_backward` holds twice, so that it stays in a core's share of the cache."""


def fixed_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    scale: float,
    num_rows: int,
    block_rows: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value by torch's flash kernel, tile by tile, in fp32 or wider."""
    num_keys, dtype = key.size(2), logsumexp.dtype
    vector = mask_vector(bias, num_keys, num_rows, dtype)
    wide_key, wide_value = key.to(dtype), value.to(dtype)
    grads = [torch.zeros_like(tensor, dtype=dtype) for tensor in (query, key, value)]
    for tile in block_tiles(query.size(2), num_keys, num_rows, block_rows):
        grad_o, q, o, lse = (
            tensor[:, :, tile.rows].flip(2).to(dtype) for tensor in (grad_output, query, output, logsumexp)
        )
        grad_q, grad_k, grad_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_o,
            q,
            wide_key[:, :, tile.keys],
            wide_value[:, :, tile.keys],
            o,
            lse,
            dropout_p=0.0,
            is_causal=False,
            attn_mask=mask_of(tile, vector, num_keys)[None],
            scale=scale,
        )
        grads[0][:, :, tile.rows] += grad_q.flip(2)
        grads[1][:, :, tile.keys] += grad_k
        grads[2][:, :, tile.keys] += grad_v
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype)


def learned_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    scale: float,
    num_rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and bias, by blocks of some groups of one sample, in fp32 or wider."""
    num_samples, num_groups, num_keys, _ = key.shape
    group_size = query.size(1) // num_groups
    num_rows = max(1, num_rows // group_size)
    dtype = torch.promote_types(query.dtype, torch.float32)
    vector = mask_vector(bias, num_keys, num_rows, dtype)
    group_bytes = group_size * num_rows * num_keys * dtype.itemsize
    block_size = max(1, BLOCK_BYTES_PER_THREAD * torch.get_num_threads() // group_bytes)
    grad_query, grad_key, grad_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    grad_bias = torch.zeros_like(bias)
    for sample in range(num_samples):
        for start in range(0, num_groups, block_size):
            groups = slice(start, start + block_size)
            heads = slice(start * group_size, (start + block_size) * group_size)
            grad_q, grad_k, grad_v, grad_vector = _block_backward(
                grad_output[sample, heads].unflatten(0, (-1, group_size)).to(dtype),
                query[sample, heads].unflatten(0, (-1, group_size)).to(dtype),
                key[sample, groups].to(dtype).contiguous(),
                value[sample, groups].to(dtype).contiguous(),
                vector[heads].unflatten(0, (-1, group_size)),
                scale,
                num_rows,
            )
            grad_query[sample, heads] = grad_q.flatten(0, 1)
            grad_key[sample, groups] = grad_k
            grad_value[sample, groups] = grad_v
            grad_bias[heads, :num_keys] += grad_vector.flatten(0, 1).flip(1)
    return grad_query, grad_key, grad_value, grad_bias


def _block_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    scale: float,
    num_rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of one block, whose probabilities are computed anew.

    Args:
        grad_output: `[T, R, Q, D]`, the R heads of each of T groups; so are query and its gradient.
        key: `[T, K, D]`; so are value and both gradients.
        vector: `[T, R, L]`; the gradient of its first K entries is `[T, R, K]`.
    """
    group_size, num_keys = query.size(1), key.size(1)
    grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
    grad_vector = torch.zeros_like(vector[..., :num_keys])
    for tile in row_tiles(query.size(2), num_keys, num_rows):
        # the heads of a group side by side: [T, R rows, D]
        q, grad_o = (tensor[:, :, tile.rows].flip(2).flatten(1, 2) for tensor in (query, grad_output))
        k, v = key[:, tile.keys], value[:, tile.keys]
        mask = mask_of(tile, vector, num_keys).flatten(1, 2)
        probs = torch.baddbmm(mask, q, k.mT, alpha=scale)  # [T, R rows, keys]
        torch.softmax(probs, -1, out=probs)
        grad_value[:, tile.keys].baddbmm_(probs.mT, grad_o)
        grad_scores = torch.bmm(grad_o, v.mT)
        torch.ops.aten._softmax_backward_data.out(grad_scores, probs, -1, probs.dtype, grad_input=grad_scores)
        grad_query[:, :, tile.rows] = torch.bmm(grad_scores, k).mul_(scale).unflatten(1, (group_size, -1)).flip(2)
        grad_key[:, tile.keys].baddbmm_(grad_scores.mT, q, alpha=scale)
        grad_vector[..., -tile.keys.stop :] += diagonal_sums(grad_scores.unflatten(1, (group_size, -1)))
    return grad_query, grad_key, grad_value, grad_vector
