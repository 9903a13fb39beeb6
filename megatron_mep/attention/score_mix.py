"""Causal attention whose scores are made anew from the scores of all heads, in memory linear in the positions."""

from collections.abc import Callable

from torch import Tensor

from megatron_mep.attention.chunked import NUM_ROWS, Scores, chunked_attention, future_of, positions_of
from megatron_mep.attention.tiles import Tile
from megatron_mep.encodings import products

Mix = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`(scores [B, H, rows, keys], query [B, H, rows, D], query position [rows], key position [keys])` -> new scores."""


def score_mix_attention(
    query: Tensor, key: Tensor, value: Tensor, mix: Mix, *, scale: float, num_rows: int = NUM_ROWS
) -> Tensor:
    """Causal softmax attention over the scores that `mix` makes of the scaled ones.

    A score in the future is zero when `mix` sees it and excluded afterwards, whatever `mix` makes of it.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        mix: A function of each query's own row, over the keys up to the chunk's last query; queries and scores are
            scaled alike, in fp32 or wider. Called again in the backward pass, which reaches the weights it reads.
        scale: Factor of the scores, usually D ** -0.5.
        num_rows: Queries of one chunk, whose scores and all that `mix` makes of them are held at once.

    Returns:
        `[B, H, Q, D]` in the query's type.
    """
    return chunked_attention(query, key, value, mixed_scores(mix), scale=scale, num_rows=num_rows)


def mixed_scores(mix: Mix) -> Scores:
    """The scores of that attention."""

    def mixed(query: Tensor, key: Tensor, tile: Tile) -> Tensor:
        scores = products.scores(query, key)
        causal = scores.masked_fill(future_of(tile, scores.device), 0)
        new = mix(causal, query, *positions_of(tile, scores.dtype, scores.device))
        assert new.shape == scores.shape, f"mixed scores {tuple(new.shape)}, not {tuple(scores.shape)}"
        return new

    return mixed
