"""The attention weights of a layer under any encoding, of one chunk of queries after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatron_mep.attention.chunked import NUM_ROWS, Scores, weights_of
from megatron_mep.attention.key_bias import biased_by_sums
from megatron_mep.attention.pair_scores import scores_of_pairs
from megatron_mep.attention.position_bias import biased_by_positions
from megatron_mep.attention.score_mix import mixed_scores
from megatron_mep.attention.tiles import Tile, row_tiles
from megatron_mep.encodings import products
from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, PairScores, PositionBias, ScoreMix


@dataclass(frozen=True, eq=False)
class Scoring:
    """What the scores of one layer are made of, on the heads that are here."""

    encoding: Encoding
    query: Tensor
    """`[B, H, Q, D]`, the last Q of the K positions, turned where the encoding turns them."""
    key: Tensor
    """`[B, G, K, D]`; head h reads group h // (H // G)."""
    acting: Any
    """What a backend of the encoding's kind is given beside queries, keys and values."""
    scale: float
    """Factor of the scores."""

    @torch.no_grad()
    def weights(self, num_rows: int = NUM_ROWS) -> Iterator[tuple[Tile, Tensor]]:
        """The attention weights `[B, H, rows, keys]` of each chunk of queries, over all keys up to its last one.

        They are exact, in fp32 or wider, whatever a backend leaves out; a chunk's are made when it is asked for.
        """
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        query, key = self.scale * self.query.to(dtype), self.key.to(dtype)
        for tile in row_tiles(query.size(2), key.size(2), num_rows):
            yield tile, weights_of(query[:, :, tile.rows], key[:, :, tile.keys], self._scores_of, tile)

    @property
    def _scores_of(self) -> Scores:
        match self.encoding:
            case DistanceBias():
                return biased_by_positions(self._of_distance)
            case PositionBias():
                return biased_by_positions(self.acting)
            case KeyBias():
                running_sum, gain = self.acting
                return biased_by_sums(running_sum, gain, self.query.size(2))
            case ScoreMix():
                return mixed_scores(self.acting)
            case PairScores():
                return scores_of_pairs(self.acting)
        return _products

    def _of_distance(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        distance = (query_position[:, None] - key_position).clamp(min=0).long()
        bias: Tensor = self.acting[:, distance]
        return bias


Observer = Callable[[Scoring], None]
"""Told of every forward pass of a layer."""


def _products(query: Tensor, key: Tensor, tile: Tile) -> Tensor:  # noqa: ARG001
    return products.scores(query, key)
