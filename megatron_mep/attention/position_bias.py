"""Causal attention with a bias that is a function of both positions, exact and in memory linear in their number."""

from collections.abc import Callable

from torch import Tensor

from megatron_mep.attention.chunked import NUM_ROWS, Scores, chunked_attention, positions_of
from megatron_mep.attention.tiles import Tile
from megatron_mep.encodings import products

BiasOf = Callable[[Tensor, Tensor], Tensor]
"""`(query position [rows], key position [keys])` -> bias `[H, rows, keys]`."""


def position_bias_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias_of: BiasOf,
    *,
    scale: float,
    num_rows: int = NUM_ROWS,
) -> Tensor:
    """Causal softmax attention with `bias_of(query position, key position)` added to the scaled scores.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        bias_of: The bias `[H, rows, keys]`, fp32 or wider, of the positions `[rows]` of some queries and `[keys]` of
            the keys up to the last of these. Called again in the backward pass, which reaches the weights it reads.
        scale: Factor of the scores, usually D ** -0.5.
        num_rows: Queries of one chunk, whose biases and scores are held at once.

    Returns:
        `[B, H, Q, D]` in the query's type.
    """
    return chunked_attention(query, key, value, biased_by_positions(bias_of), scale=scale, num_rows=num_rows)


def biased_by_positions(bias_of: BiasOf) -> Scores:
    """The scores of that attention."""

    def biased(query: Tensor, key: Tensor, tile: Tile) -> Tensor:
        scores = products.scores(query, key)
        bias = bias_of(*positions_of(tile, scores.dtype, scores.device))
        assert bias.shape == scores.shape[1:], f"bias {tuple(bias.shape)} for scores {tuple(scores.shape)}"
        return scores.add_(bias)

    return biased
