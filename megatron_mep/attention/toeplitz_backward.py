"""Gradients of toeplitz attention tile by tile, for a bias that is fixed and for one that learns."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from megatron_mep.attention.hankel import (
    add_to_keys,
    diagonal_sums,
    first_entry,
    keys_of,
    mask_of,
    mask_vector,
    rows_of,
)
from megatron_mep.attention.tiles import ALL, Tile

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
    *,
    scale: float,
    tiles: Sequence[Tile],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value by torch's flash kernel, in fp32 or wider."""
    num_keys, dtype = key.size(2), logsumexp.dtype
    vector = mask_vector(bias, num_keys, max(tile.num_rows for tile in tiles if tile.on_diagonal), dtype)
    grads = [torch.zeros_like(tensor, dtype=dtype) for tensor in (query, key, value)]
    by_row, by_key = (grad_output, query, output, logsumexp), (key.to(dtype), value.to(dtype))
    for tile in tiles:
        groups = tile.groups(query.size(1) // key.size(1))
        mask = mask_of(tile, vector[tile.heads], num_keys)
        for sample in range(query.size(0)) if tile.num_tiles > 1 else (ALL,):
            grad_q, grad_k, grad_v = _tile_backward(
                [rows_of(tensor[sample, tile.heads], tile).flip(2).to(dtype) for tensor in by_row],
                [keys_of(tensor[sample, groups], tile) for tensor in by_key],
                mask,
                scale,
            )
            rows_of(grads[0][sample, tile.heads], tile).add_(grad_q.flip(2))
            add_to_keys(grads[1][sample, groups], tile, grad_k)
            add_to_keys(grads[2][sample, groups], tile, grad_v)
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype)


def _tile_backward(
    by_row: list[Tensor], by_key: list[Tensor], mask: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of one tile or band.

    Torch's kernel gives a thread whole heads. A tile of fewer heads than there are threads becomes a batch of tiles of
    fewer rows and the same keys.
    """
    batch, num_heads, num_rows = by_row[1].shape[:3]
    parts = max(1, torch.get_num_threads() // num_heads)
    if batch > 1 or num_rows % parts:
        parts = 1
    if parts > 1:
        by_row, mask = [_in_parts(tensor, parts) for tensor in by_row], _in_parts(mask, parts)
        by_key = [tensor.expand(parts, -1, -1, -1) for tensor in by_key]
    grad_o, query, output, logsumexp = by_row
    grad_query, grad_key, grad_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_o, query, *by_key, output, logsumexp, dropout_p=0.0, is_causal=False, attn_mask=mask, scale=scale
    )
    if parts == 1:
        return grad_query, grad_key, grad_value
    grad_query = grad_query.transpose(0, 1).flatten(1, 2)[None]
    return grad_query, grad_key.sum(0, keepdim=True), grad_value.sum(0, keepdim=True)


def _in_parts(rows: Tensor, parts: int) -> Tensor:
    """`[1, H, R, ...]` -> `[parts, H, R / parts, ...]`."""
    return rows[0].unflatten(1, (parts, -1)).transpose(0, 1)


def learned_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    *,
    scale: float,
    tiles: Iterable[Tile],
    num_rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and bias, some groups of one sample at a time, in fp32 or wider.

    `num_rows` are the query rows taken at once, of all heads of a group together.
    """
    num_keys, dtype = key.size(2), logsumexp.dtype
    vector = mask_vector(bias, num_keys, num_rows, dtype)
    grads = [torch.zeros_like(tensor, dtype=dtype) for tensor in (query, key, value)]
    grad_vector = torch.zeros_like(vector)
    for sample in range(query.size(0)):
        grad_o, q, o = (tensor[sample].to(dtype) for tensor in (grad_output, query, output))
        k, v = (tensor[sample].to(dtype).contiguous() for tensor in (key, value))
        rows, keys = _Rows(grad_o, q, o, logsumexp[sample]), _Keys(k, v, vector)
        sample_grads = _Grads(grads[0][sample], grads[1][sample], grads[2][sample], grad_vector)
        for tile in (band.moved(step) for band in tiles for step in range(band.num_tiles)):
            for block in _blocks(tile, query.size(1), key.size(1), num_rows, dtype):
                _block_backward(block, rows, keys, sample_grads, scale)
    grad_bias = torch.zeros_like(bias)
    grad_bias[:, :num_keys] = grad_vector[:, :num_keys].flip(1)
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype), grad_bias


class _Rows(NamedTuple):
    """What a sample has for each query: `[H, Q, D]`, the last `[H, Q]`."""

    grad_output: Tensor
    query: Tensor
    output: Tensor
    logsumexp: Tensor


class _Keys(NamedTuple):
    """What a sample has for each key: `[G, K, D]`, the last `[H, L]`."""

    key: Tensor
    value: Tensor
    vector: Tensor


class _Grads(NamedTuple):
    """Where a sample's gradients are added up."""

    query: Tensor
    key: Tensor
    value: Tensor
    vector: Tensor


class _Block(NamedTuple):
    """A tile of some groups, or of some heads of one group, small enough to be computed at once."""

    tile: Tile
    groups: slice
    group_size: int


def _blocks(tile: Tile, num_heads: int, num_groups: int, num_rows: int, dtype: torch.dtype) -> Iterator[_Block]:
    """Some rows of as many groups at a time as keep their scores in the cache.

    All rows that allow the same number of groups are taken before other groups are, whose keys would be read anew.
    """
    first, last, _ = tile.heads.indices(num_heads)
    group_size = min(num_heads // num_groups, last - first)

    def heads_at_once(part: Tile) -> int:
        group_bytes = group_size * part.num_rows * part.num_keys * dtype.itemsize
        return group_size * max(1, BLOCK_BYTES_PER_THREAD * torch.get_num_threads() // group_bytes)

    for step, run in groupby(tile.parts(max(1, num_rows // group_size)), heads_at_once):
        parts = list(run)
        for start in range(first, last, step):
            for part in parts:
                heads = part._replace(heads=slice(start, min(start + step, last)))
                yield _Block(heads, heads.groups(num_heads // num_groups), group_size)


def _block_backward(block: _Block, rows: _Rows, keys: _Keys, grads: _Grads, scale: float) -> None:
    """Add the gradients of a block, whose probabilities are computed anew."""
    (tile, groups, group_size), heads = block, block.tile.heads

    def side_by_side(tensor: Tensor) -> Tensor:
        """The heads of a group beside each other, rows from the last to the first: `[T groups, R rows, ...]`."""
        return tensor[heads, tile.rows].flip(1).unflatten(0, (-1, group_size)).flatten(1, 2)

    q, grad_o = side_by_side(rows.query), side_by_side(rows.grad_output)
    k, v = keys.key[groups, tile.keys], keys.value[groups, tile.keys]
    mask = mask_of(tile, keys.vector[heads], keys.key.size(1))[0].unflatten(0, (-1, group_size)).flatten(1, 2)
    scores = torch.baddbmm(mask, q, k.mT, alpha=scale)  # [T, R, keys]
    if tile.keys.start == 0 and tile.on_diagonal:
        # all keys of these queries are here
        probs = torch.softmax(scores, -1, out=scores)
        grad_scores = torch.bmm(grad_o, v.mT)
        torch.ops.aten._softmax_backward_data.out(grad_scores, probs, -1, probs.dtype, grad_input=grad_scores)
    else:
        probs = _exp_(scores.sub_(side_by_side(rows.logsumexp)[..., None]))
        expected = torch.linalg.vecdot(grad_o, side_by_side(rows.output))[..., None]
        grad_scores = torch.baddbmm(-expected.expand_as(probs), grad_o, v.mT).mul_(probs)
    grads.value[groups, tile.keys].baddbmm_(probs.mT, grad_o)
    grad_q = torch.bmm(grad_scores, k).mul_(scale)
    grads.query[heads, tile.rows] += grad_q.unflatten(1, (group_size, -1)).flatten(0, 1).flip(1)
    grads.key[groups, tile.keys].baddbmm_(grad_scores.mT, q, alpha=scale)
    sums = diagonal_sums(grad_scores.unflatten(1, (group_size, -1)).flatten(0, 1), tile.on_diagonal)
    first = first_entry(tile, keys.key.size(1))
    grads.vector[heads, first : first + sums.size(-1)] += sums


def _exp_(tensor: Tensor) -> Tensor:
    """In place. Torch's exp takes ten times as long where it underflows, as a steep bias makes it; exp2 does not."""
    return tensor.mul_(math.log2(math.e)).exp2_()
