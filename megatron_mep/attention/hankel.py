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
    """The tile's mask `[..., rows, keys]` as a view of the vectors `[..., L]`, its rows from the last to the first."""
    shape = (*vector.shape[:-1], tile.rows.stop - tile.rows.start, tile.keys.stop - tile.keys.start)
    first = num_keys - 1 - tile.position + tile.keys.start
    return vector.as_strided(shape, (*vector.stride(), 1), vector.storage_offset() + first)


def diagonal_sums(matrix: Tensor) -> Tensor:
    """Sums over the entries of one distance, from the largest distance to zero: `[..., rows, n]` -> `[..., n]`.

    Rows run from the last query to the first, and entries in the future are zero. A view whose rows are one entry
    short shifts each row against the one above, which puts a distance in a column. What wraps around from one row into
    the next is in the future, but for the first column, which belongs to the first row alone.
    """
    assert matrix.is_contiguous(), "rows must follow each other in memory"
    skewed = matrix.as_strided(matrix.shape, (*matrix.stride()[:-2], matrix.size(-1) - 1, 1))
    sums = skewed.sum(-2)
    sums[..., 0] = matrix[..., 0, 0]
    return sums
