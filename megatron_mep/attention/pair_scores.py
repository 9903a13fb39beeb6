"""Causal attention over scores that are more than a product of queries and keys, in memory linear in the positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from megatron_mep.attention.chunked import NUM_ROWS, Scores, chunked_attention, positions_of
from megatron_mep.attention.tiles import Tile

Pairs = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`(query [B, H, rows, D], key [B, G, keys, D], query's place [rows], key's place [keys])` -> scores."""


def pair_scores_attention(
    query: Tensor, key: Tensor, value: Tensor, pairs: Pairs, *, scale: float, num_rows: int = NUM_ROWS
) -> Tensor:
    """Causal softmax attention over the scores that `pairs` returns.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        pairs: The scores `[B, H, rows, keys]` of some scaled queries and the keys up to the last of these, both in fp32
            or wider, with where each stands among all keys, counted from 0 in int64. Called again in the backward pass,
            which reaches the weights it reads.
        scale: Factor of the scores, usually D ** -0.5.
        num_rows: Queries of one chunk, whose scores and all that `pairs` makes of them are held at once.

    Returns:
        `[B, H, Q, D]` in the query's type.
    """
    return chunked_attention(query, key, value, scores_of_pairs(pairs), scale=scale, num_rows=num_rows)


def scores_of_pairs(pairs: Pairs) -> Scores:
    """The scores of that attention."""

    def scores_of(query: Tensor, key: Tensor, tile: Tile) -> Tensor:
        scores = pairs(query, key, *positions_of(tile, torch.int64, query.device))
        expected = (*query.shape[:3], key.size(2))
        assert scores.shape == expected, f"scores {tuple(scores.shape)}, not {expected}"
        return scores

    return scores_of
