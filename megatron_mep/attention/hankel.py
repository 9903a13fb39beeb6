"""The bias of a chunk of queries as a view of one vector a head, and sums along its diagonals.

The biases of a head make a Toeplitz matrix: entry (i, j) is `b[i - j]`, and -inf where i < j. With its rows from the
last to the first it is a Hankel matrix: each row is the one above shifted by one, so that a strided view of a vector
is the whole of it. For a chunk whose last query stands at position n - 1 and sees n of K keys:

    vector[t]  = b[K - 1 - t] for t < K, then -inf
    mask[r, j] = vector[K - n + r + j], the bias of query position n - 1 - r at key j
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Chunk(NamedTuple):
    """Some consecutive queries and the keys that the last of them sees."""

    rows: slice
    num_keys: int


def chunks(num_queries: int, num_keys: int, num_rows: int) -> Iterator[Chunk]:
    """The queries at the last of `num_keys` positions, up to `num_rows` at a time."""
    for start in range(0, num_queries, num_rows):
        stop = min(start + num_rows, num_queries)
        yield Chunk(slice(start, stop), num_keys - num_queries + stop)


def mask_vector(bias: Tensor, num_keys: int, num_rows: int, dtype: torch.dtype) -> Tensor:
    """The vectors `[H, K + num_rows - 1]` of a bias by distance `[H, N >= K]`, for chunks of up to `num_rows` rows."""
    reversed_bias = bias[:, :num_keys].flip(1).to(dtype)
    return functional.pad(reversed_bias, (0, num_rows - 1), value=-torch.inf)


def mask_of(chunk: Chunk, vector: Tensor, num_keys: int) -> Tensor:
    """The chunk's mask `[..., rows, keys]` as a view of the vectors `[..., L]`, its rows from the last to the first."""
    shape = (*vector.shape[:-1], chunk.rows.stop - chunk.rows.start, chunk.num_keys)
    return vector.as_strided(shape, (*vector.stride(), 1), vector.storage_offset() + num_keys - chunk.num_keys)


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
