"""Causal attention with a bias by distance on a CPU, in memory linear in the number of positions.

The biases of one head make a Toeplitz matrix: entry (i, j) is `b[i - j]`, and -inf where i < j. With its rows from the
last to the first, each row is the one above shifted by one, so a strided view of a vector is the whole matrix:

    vector[t]  = b[K - 1 - t] for t < K, then -inf
    mask[r, j] = vector[first + r + j], where row r is query position K - 1 - first - r

The forward pass hands chunks of reversed query rows with such views to torch's flash kernel. The backward pass
recomputes the probabilities chunk by chunk; the bias's gradient sums the scores' gradient along the same diagonals.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_BLOCK_BYTES_PER_THREAD = 2 * 2**20
"""Size of a block of scores in the backward pass: two of them stay in a core's share of the last-level cache."""


def toeplitz_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    *,
    scale: float,
    forward_rows: int = 256,
    backward_rows: int = 128,
) -> Tensor:
    """Causal softmax attention with `bias[h, query position - key position]` added to the scaled scores.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        bias: `[H, N]` by distance, N >= K, fp32 or wider. -inf excludes a distance; distance 0 stays finite.
        scale: Factor of the scores, usually D ** -0.5.
        forward_rows: Query rows of one chunk of the forward pass.
        backward_rows: Query rows, of all heads of a group together, of one chunk of the backward pass.

    Returns:
        `[B, H, Q, D]`, laid out in memory as `[Q, B, H, D]`.
    """
    num_heads, num_queries, num_keys = query.size(1), query.size(2), key.size(2)
    assert query.device.type == "cpu", f"the toeplitz backend computes on a CPU, not on {query.device}"
    assert num_heads % key.size(1) == 0, f"{num_heads} heads do not split over {key.size(1)} groups"
    assert num_queries <= num_keys, f"{num_queries} queries cannot be the last of {num_keys} positions"
    assert bias.size(0) == num_heads, f"bias of {bias.size(0)} heads for {num_heads}"
    assert bias.size(1) >= num_keys, f"bias ends at distance {bias.size(1) - 1}, before {num_keys} positions"
    assert bias.dtype in (torch.float32, torch.float64), f"a bias is fp32 or wider, not {bias.dtype}"
    query, key, value = (_with_dense_rows(tensor) for tensor in (query, key, value))
    output: Tensor = _ToeplitzAttention.apply(query, key, value, bias, scale, forward_rows, backward_rows)
    return output


class _ToeplitzAttention(torch.autograd.Function):
    """Both passes by hand: autograd through a mask would hold a gradient of [H, Q, K]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        scale: float,
        forward_rows: int,
        backward_rows: int,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, bias)
        ctx.scale, ctx.num_rows = scale, backward_rows
        return _forward(query, key, value, bias, scale, forward_rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias = ctx.saved_tensors
        bias_learns = ctx.needs_input_grad[3]
        grads = _backward(grad_output, query, key, value, bias, ctx.scale, ctx.num_rows, bias_learns)
        return *grads, None, None, None


class _Chunk(NamedTuple):
    rows: slice
    """Its queries."""
    num_keys: int
    """Keys up to and with the position of its last query."""


def _chunks(num_queries: int, num_keys: int, num_rows: int) -> Iterator[_Chunk]:
    """All queries, `num_rows` at a time."""
    for start in range(0, num_queries, num_rows):
        stop = min(start + num_rows, num_queries)
        yield _Chunk(slice(start, stop), num_keys - num_queries + stop)


def _forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, num_rows: int) -> Tensor:
    num_samples, num_heads, num_queries, head_size = query.shape
    vector = _mask_vector(bias, key, num_rows)
    output = query.new_empty(num_queries, num_samples, num_heads, head_size).permute(1, 2, 0, 3)
    for chunk in _chunks(num_queries, key.size(2), num_rows):
        reversed_output, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[:, :, chunk.rows].flip(2),
            key[:, :, : chunk.num_keys],
            value[:, :, : chunk.num_keys],
            attn_mask=_mask(vector, chunk, key.size(2))[None],
            scale=scale,
        )
        output[:, :, chunk.rows] = reversed_output.flip(2)
    return output


def _backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    scale: float,
    num_rows: int,
    bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value and bias, computed in blocks of some groups of one sample."""
    num_groups, num_keys = key.shape[1:3]
    group_size = query.size(1) // num_groups
    num_rows = max(1, num_rows // group_size)
    vector = _mask_vector(bias, key, num_rows)
    block_bytes = _BLOCK_BYTES_PER_THREAD * torch.get_num_threads()
    block = max(1, block_bytes // (group_size * num_rows * num_keys * vector.element_size()))
    grad_query, grad_key, grad_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    grad_bias = torch.zeros_like(bias) if bias_learns else None
    for sample in range(query.size(0)):
        for start in range(0, num_groups, block):
            groups = slice(start, start + block)
            heads = slice(start * group_size, (start + block) * group_size)
            grads = _block_backward(
                grad_output[sample, heads].unflatten(0, (-1, group_size)).to(vector.dtype),
                query[sample, heads].unflatten(0, (-1, group_size)).to(vector.dtype),
                key[sample, groups].to(vector.dtype).contiguous(),
                value[sample, groups].to(vector.dtype).contiguous(),
                vector[heads].unflatten(0, (-1, group_size)),
                scale,
                num_rows,
                bias_learns,
            )
            grad_query[sample, heads] = grads[0].flatten(0, 1)
            grad_key[sample, groups], grad_value[sample, groups] = grads[1:3]
            if grad_bias is not None:
                grad_bias[heads, :num_keys] += grads[3].flatten(0, 1).flip(1)
    return grad_query, grad_key, grad_value, grad_bias


def _block_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    scale: float,
    num_rows: int,
    bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of one block, from its recomputed probabilities.

    Args:
        grad_output: `[T, R, Q, D]`, the R heads of each of T groups; so are query and its gradient.
        key: `[T, K, D]`; so are value and both gradients.
        vector: `[T, R, L]`; its gradient is `[T, R, K]`.
    """
    group_size, num_keys = query.size(1), key.size(1)
    grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
    grad_vector = torch.zeros_like(vector[..., :num_keys])
    for chunk in _chunks(query.size(2), num_keys, num_rows):
        q, grad_o = (tensor[:, :, chunk.rows].flip(2).flatten(1, 2) for tensor in (query, grad_output))
        k, v = key[:, : chunk.num_keys], value[:, : chunk.num_keys]
        mask = _mask(vector, chunk, num_keys).flatten(1, 2)
        probs = torch.baddbmm(mask, q, k.mT, alpha=scale)  # [T, R rows, keys]
        torch.softmax(probs, -1, out=probs)
        grad_value[:, : chunk.num_keys].baddbmm_(probs.mT, grad_o)
        grad_scores = torch.bmm(grad_o, v.mT)
        torch.ops.aten._softmax_backward_data.out(grad_scores, probs, -1, probs.dtype, grad_input=grad_scores)
        grad_query[:, :, chunk.rows] = torch.bmm(grad_scores, k).mul_(scale).unflatten(1, (group_size, -1)).flip(2)
        grad_key[:, : chunk.num_keys].baddbmm_(grad_scores.mT, q, alpha=scale)
        if bias_learns:
            grad_vector[..., -chunk.num_keys :] += _diagonal_sums(grad_scores.unflatten(1, (group_size, -1)))
    return grad_query, grad_key, grad_value, grad_vector


def _mask_vector(bias: Tensor, key: Tensor, num_rows: int) -> Tensor:
    """The vector whose views are the masks of chunks of up to `num_rows` rows, `[H, K + num_rows - 1]`."""
    reversed_bias = bias[:, : key.size(2)].flip(1).to(torch.promote_types(key.dtype, torch.float32))
    return functional.pad(reversed_bias, (0, num_rows - 1), value=-torch.inf)


def _mask(vector: Tensor, chunk: _Chunk, num_keys: int) -> Tensor:
    """The chunk's mask as a view `[..., rows, keys]` of the vectors `[..., L]`, its rows from the last to the first."""
    shape = (*vector.shape[:-1], chunk.rows.stop - chunk.rows.start, chunk.num_keys)
    first = num_keys - chunk.num_keys
    return vector.as_strided(shape, (*vector.stride(), 1), vector.storage_offset() + first)


def _diagonal_sums(scores: Tensor) -> Tensor:
    """Sums over the entries of equal distance in `[..., rows, keys]`, rows from the last to the first.

    A view whose rows are one entry short shifts each row against the one above, and so puts a distance in a column,
    from the largest to zero. What wraps around into a row is in the future, hence zero, but for the first column.
    """
    skewed = scores.as_strided(scores.shape, (*scores.stride()[:-2], scores.size(-1) - 1, 1))
    sums = skewed.sum(-2)
    sums[..., 0] = scores[..., 0, 0]
    return sums


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied only if its last dimension is not contiguous, as the kernel needs it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
