"""Causal attention to keys that come block by block, in memory linear in the positions of a block.

What a query has attended to is kept as an output and a logsumexp, to which each block is joined. The backward pass
computes the probabilities of a block anew from the logsumexp over all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from megatron_mep.attention.join import join
from megatron_mep.attention.tile_biases import TileBiases
from megatron_mep.attention.tiles import Tile

NUM_ROWS = 128
"""Queries whose scores with a block are held at once."""


@dataclass(frozen=True)
class Block:
    """Some consecutive queries against some consecutive keys, which are all before them, or the very same positions."""

    queries: slice
    """Among those that are here."""
    keys: slice
    """Among those that have come."""
    query_position: int
    """Where the first query stands in the sequence."""
    key_position: int
    """Where the first key stands."""

    def tiles(self) -> Iterator[Tile]:
        """Rows counted from the first query of the block on, keys by their place in the sequence."""
        num_rows, num_keys = (part.stop - part.start for part in (self.queries, self.keys))
        stop = min(self.key_position + num_keys, self.query_position + num_rows)
        last = self.query_position + num_rows - 1
        yield from Tile(slice(0, num_rows), slice(self.key_position, stop), last).parts(NUM_ROWS)


@dataclass(frozen=True)
class Rows:
    """Queries `[B, H, Q, D]`, scaled, and what they have attended to; all in fp32 or wider."""

    query: Tensor
    output: Tensor
    """`[B, H, Q, E]`, zero before the first block."""
    logsumexp: Tensor
    """`[B, H, Q]`, -inf before the first block."""

    def attend(self, block: Block, key: Tensor, value: Tensor, biases: TileBiases) -> None:
        """Join the keys `[B, G, K, D]` and values `[B, G, K, E]` of a block to what was attended to."""
        for tile in block.tiles():
            rows, keys = _places(block, tile)
            scores = _scores(self.query[:, :, rows].flip(2), key[:, :, keys], biases.of(tile))
            logsumexp = scores.logsumexp(-1)
            probs = scores.sub_(logsumexp[..., None]).exp_()
            output = _grouped(probs, value) @ value[:, :, keys]
            join(
                self.output[:, :, rows],
                self.logsumexp[:, :, rows],
                _by_head(output, probs).flip(2),
                logsumexp.flip(2),
            )


@dataclass(frozen=True)
class Gradients:
    """Where the gradients are added up that a block gives, in fp32 or wider."""

    query: Tensor
    """Of the scaled queries."""
    key: Tensor
    value: Tensor
    learns: bool
    """Whether the biases keep theirs."""

    def add(
        self, block: Block, rows: Rows, key: Tensor, value: Tensor, biases: TileBiases, grad: Tensor, expected: Tensor
    ) -> None:
        """Add those of a block.

        Args:
            block: The queries and keys that meet.
            rows: What the queries have attended to once all blocks have come.
            key: `[B, G, K, D]`.
            value: `[B, G, K, E]`.
            biases: Of all pairs.
            grad: That of the output, `[B, H, Q, E]`.
            expected: Its product with the output, `[B, H, Q]`.
        """
        for tile in block.tiles():
            at, keys = _places(block, tile)
            query, grad_output, total, mean = (
                each[:, :, at].flip(2) for each in (rows.query, grad, rows.logsumexp, expected)
            )
            k, v = key[:, :, keys], value[:, :, keys]
            probs = _scores(query, k, biases.of(tile)).sub_(total[..., None]).exp_()
            of_groups = _grouped(grad_output, v)
            self.value[:, :, keys] += _grouped(probs, v).mT @ of_groups
            grad_scores = _by_head(of_groups @ v.mT, probs).sub_(mean[..., None]).mul_(probs)
            if self.learns:
                biases.add_gradient(tile, grad_scores)
            scores_of_groups = _grouped(grad_scores, k)
            self.key[:, :, keys] += scores_of_groups.mT @ _grouped(query, k)
            self.query[:, :, at] += _by_head(scores_of_groups @ k, query).flip(2)


def _places(block: Block, tile: Tile) -> tuple[slice, slice]:
    """A tile's queries among those that are here, and its keys among those that have come."""
    start, shift = block.queries.start, block.keys.start - block.key_position
    rows, keys = tile.rows, tile.keys
    return slice(start + rows.start, start + rows.stop), slice(shift + keys.start, shift + keys.stop)


def _scores(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """`[B, H, rows, keys]`."""
    scores = _grouped(query, key) @ key.mT
    return _by_head(scores, query).add_(bias)


def _grouped(rows: Tensor, groups: Tensor) -> Tensor:
    """`[B, H, rows, ...]` -> `[B, G, H / G * rows, ...]`: the heads of a group beside each other."""
    return rows.unflatten(1, (groups.size(1), -1)).flatten(2, 3)


def _by_head(rows: Tensor, like: Tensor) -> Tensor:
    """The way back, to the heads of `like [B, H, rows, ...]`."""
    return rows.unflatten(2, (-1, like.size(2))).flatten(1, 2)
