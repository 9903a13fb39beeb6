"""Cuts queries and the keys they see into rectangles, for kernels that compute whole rectangles."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

ALL = slice(None)


class Tile(NamedTuple):
    """Some consecutive queries against some consecutive keys, in some heads; or a band of such tiles."""

    rows: slice
    keys: slice
    position: int
    """Where the last of its queries stands among all keys."""
    heads: slice = ALL
    """Consecutive heads: all of some groups, or some of one group."""
    num_tiles: int = 1
    """Tiles of the band. Each is the one before moved on by its number of rows, in queries and keys alike."""

    @property
    def on_diagonal(self) -> bool:
        """Whether its queries see themselves in it; all do, or none."""
        return self.keys.stop > self.position

    @property
    def num_rows(self) -> int:
        """Of each head, in one tile of the band."""
        return self.rows.stop - self.rows.start

    @property
    def num_keys(self) -> int:
        """In one tile of the band."""
        return self.keys.stop - self.keys.start

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key that it sees, of each head, in the whole band."""
        future = self.num_rows * (self.num_rows - 1) // 2 if self.on_diagonal else 0
        return self.num_tiles * (self.num_rows * self.num_keys - future)

    @property
    def all_rows(self) -> slice:
        """The queries of the whole band."""
        return slice(self.rows.start, self.rows.start + self.num_tiles * self.num_rows)

    def groups(self, group_size: int) -> slice:
        """Whose keys its heads read, of groups of `group_size` heads."""
        if self.heads == ALL:
            return ALL
        return slice(self.heads.start // group_size, -(-self.heads.stop // group_size))

    def moved(self, steps: int) -> "Tile":
        """One tile of the band."""
        rows, keys = (slice(part.start + steps * self.num_rows, part.stop + steps * self.num_rows)
                      for part in (self.rows, self.keys))  # fmt: skip
        return self._replace(rows=rows, keys=keys, position=self.position + steps * self.num_rows, num_tiles=1)

    def parts(self, num_rows: int) -> Iterator["Tile"]:
        """A single tile in tiles of `num_rows` queries, each with the keys that its queries see."""
        for start in range(self.rows.start, self.rows.stop, num_rows):
            stop = min(start + num_rows, self.rows.stop)
            position = self.position - (self.rows.stop - stop)
            yield self._replace(
                rows=slice(start, stop),
                keys=slice(self.keys.start, min(self.keys.stop, position + 1)),
                position=position,
            )


def row_tiles(num_queries: int, num_keys: int, num_rows: int) -> Iterator[Tile]:
    """The queries at the last of `num_keys` positions, `num_rows` at a time, each time with all keys that they see."""
    return Tile(slice(0, num_queries), slice(0, num_keys), num_keys - 1).parts(num_rows)


def block_tiles(num_queries: int, num_keys: int, num_rows: int, block_rows: int) -> Iterator[Tile]:
    """The same in blocks of `block_rows` queries: by `num_rows` the keys within a block, then all before it at once.

    Few rows at a time waste little on keys in the future; many at a time read the keys less often. A query's first
    tile is the one in which it sees itself.
    """
    for block in row_tiles(num_queries, num_keys, block_rows):
        first = block.position + 1 - block.num_rows if block.num_rows > num_rows else 0
        yield from block._replace(keys=slice(first, block.keys.stop)).parts(num_rows)
        if first:
            yield block._replace(keys=slice(0, first))


def in_bands(tiles: Iterable[Tile], longest: int) -> Iterator[Tile]:
    """The same tiles, consecutive ones that make a band as bands of up to `longest`."""
    band: Tile | None = None
    for tile in tiles:
        if band is not None and band.num_tiles < longest and band.moved(band.num_tiles) == tile:
            band = band._replace(num_tiles=band.num_tiles + 1)
            continue
        if band is not None:
            yield band
        band = tile
    if band is not None:
        yield band
