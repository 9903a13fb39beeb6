"""Cuts queries and the keys they see into rectangles, for kernels that compute whole rectangles."""

from collections.abc import Iterator
from typing import NamedTuple


class Tile(NamedTuple):
    """Some consecutive queries against some consecutive keys."""

    rows: slice
    keys: slice
    position: int
    """Where the last of its queries stands among all keys."""


def row_tiles(num_queries: int, num_keys: int, num_rows: int) -> Iterator[Tile]:
    """The queries at the last of `num_keys` positions, `num_rows` at a time, each time with all keys that they see."""
    for start in range(0, num_queries, num_rows):
        stop = min(start + num_rows, num_queries)
        position = num_keys - num_queries + stop - 1
        yield Tile(slice(start, stop), slice(0, position + 1), position)


def block_tiles(num_queries: int, num_keys: int, num_rows: int, block_rows: int) -> Iterator[Tile]:
    """The same in blocks of `block_rows` queries: first the keys before a block, then by `num_rows` those within it.

    Few rows at a time waste little on keys in the future; many at a time read the keys less often. A query's tiles
    follow each other by key, and the first of them begins at key 0.
    """
    for block in row_tiles(num_queries, num_keys, block_rows):
        size = block.rows.stop - block.rows.start
        first = block.position + 1 - size if size > num_rows else 0
        if first:
            yield block._replace(keys=slice(0, first))
        for tile in row_tiles(size, block.position + 1, num_rows):
            rows = slice(block.rows.start + tile.rows.start, block.rows.start + tile.rows.stop)
            yield Tile(rows, slice(first, tile.keys.stop), tile.position)
