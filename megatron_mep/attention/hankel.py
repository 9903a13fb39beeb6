"""The bias of a tile as a view of one vector a head, and sums along its diagonals.

The biases of a head make a Toeplitz matrix: entry (i, j) is `b[i - j]`, and nothing where i < j. With its rows from
the last to the first it is a Hankel matrix: each row is the one above shifted by one, so that a strided view of a
vector is the whole of it. For a tile whose last query stands at position p and whose first key is k:

    vector[t]  = b[K - 1 - t] for t < K, then excluded
    mask[r, j] = vector[K - 1 - p + k + r + j], the bias of query position p - r at key k + j
"""

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.tiles import Tile

EXCLUDED = -1e30
"""Stands for -inf: as surely zero after the softmax, and finite where a tile holds nothing else."""


def mask_vector(bias: Tensor, num_keys: int, num_rows: int, dtype: torch.dtype) -> Tensor:
    """The vectors `[H, K + num_rows - 1]` of a bias by distance `[H, N >= K]`.

    They serve tiles of any number of rows that all see all keys of the tile, and others of up to `num_rows` rows.
    """
    reversed_bias = bias[:, :num_keys].flip(1).to(dtype).clamp(min=EXCLUDED)
    return functional.pad(reversed_bias, (0, num_rows - 1), value=EXCLUDED)


def mask_of(tile: Tile, vector: Tensor, num_keys: int) -> Tensor:
    """The tile's mask `[num_tiles, H, rows, keys]` as a view of the vectors `[H, L]`, rows from the last to the first.

    It is the same for each tile of a band.
    """
    shape = (tile.num_tiles, vector.size(0), tile.num_rows, tile.num_keys)
    return vector.as_strided(shape, (0, *vector.stride(), 1), vector.storage_offset() + first_entry(tile, num_keys))


def rows_of(tensor: Tensor, tile: Tile) -> Tensor:
    """The queries of a tile, a view: of `[B, H, Q, ...]`, or of `[H, Q, ...]` as a band's batch."""
    if tile.num_tiles == 1:
        return tensor[:, :, tile.rows]
    return tensor[:, tile.all_rows].unflatten(1, (tile.num_tiles, -1)).transpose(0, 1)


def keys_of(tensor: Tensor, tile: Tile) -> Tensor:
    """The keys of a tile: of `[B, G, K, D]`, or of `[G, K, D]` as a band's batch, whose entries overlap in memory."""
    if tile.num_tiles == 1:
        return tensor[:, :, tile.keys]
    group_stride, key_stride, _ = tensor.stride()
    return tensor.as_strided(
        (tile.num_tiles, tensor.size(0), tile.num_keys, tensor.size(2)),
        (tile.num_rows * key_stride, group_stride, key_stride, 1),
        tensor.storage_offset() + tile.keys.start * key_stride,
    )


def add_to_keys(whole: Tensor, tile: Tile, part: Tensor) -> None:
    """Add what `keys_of(whole, tile)` is to gain; the tiles of a band meet the same keys, so that it is cut up."""
    if tile.num_tiles == 1:
        whole[:, :, tile.keys] += part
        return
    for start in range(0, tile.num_keys, tile.num_rows):
        stop = min(start + tile.num_rows, tile.num_keys)
        apart = tile._replace(keys=slice(tile.keys.start + start, tile.keys.start + stop))
        keys_of(whole, apart).add_(part[:, :, start:stop])


def first_entry(tile: Tile, num_keys: int) -> int:
    """Where in the vectors the bias of a tile's largest distance stands; those of smaller ones follow."""
    return num_keys - 1 - tile.position + tile.keys.start


def diagonal_sums(matrix: Tensor, on_diagonal: bool) -> Tensor:
    """Sums over the entries of one distance, from the largest distance on: `[..., rows, n]` -> `[..., m]`.

    Rows run from the last query to the first. On the diagonal, entries in the future are zero and m = n; before it,
    m = n + rows - 1.

    A view whose rows are one entry short shifts each row against the one above, which puts a distance in a column. What
    wraps around from one row into the next is zero: in the future, or in the padding that stands in for it.
    """
    assert matrix.is_contiguous(), "rows must follow each other in memory"
    padded = matrix if on_diagonal else functional.pad(matrix, (0, matrix.size(-2)))
    width = padded.size(-1) - (0 if on_diagonal else 1)
    skewed = padded.as_strided((*padded.shape[:-1], width), (*padded.stride()[:-2], padded.size(-1) - 1, 1))
    sums = skewed.sum(-2)
    # without padding, the first entry of every other row meets the last but one of the row above
    sums[..., 0] = matrix[..., 0, 0]
    return sums
