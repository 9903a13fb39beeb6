"""Causal attention with a bias by what tokens say of themselves, exact and in memory linear in their number."""

import torch
from torch import Tensor

from megatron_mep.attention.chunked import NUM_ROWS, Scores, chunked_attention
from megatron_mep.attention.tiles import Tile
from megatron_mep.encodings import products


def key_bias_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    running_sum: Tensor,
    gain: Tensor | None,
    *,
    scale: float,
    num_rows: int = NUM_ROWS,
) -> Tensor:
    """Causal softmax attention with `gain[i] (running_sum[j] - running_sum[i])` added to the scaled scores.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        running_sum: `[B, H, K]` in fp32 or fp64. A bias is rounded only once it is a difference: fp64 sums keep its
            precision however large they are.
        gain: `[B, H, Q]` in fp32 or wider; `None` for 1.
        scale: Factor of the scores, usually D ** -0.5.
        num_rows: Queries of one chunk, whose biases and scores are held at once.

    Returns:
        `[B, H, Q, D]` in the query's type.
    """
    num_samples, num_heads, num_queries, _ = query.shape
    num_keys = key.size(2)
    expected = (num_samples, num_heads, num_keys)
    assert running_sum.shape == expected, f"running sum {tuple(running_sum.shape)}, not {expected}"
    assert running_sum.dtype in (torch.float32, torch.float64), f"a sum is fp32 or wider, not {running_sum.dtype}"
    assert gain is None or gain.shape == query.shape[:3], f"a gain of every query, not {tuple(gain.shape)}"
    scores_of = biased_by_sums(running_sum, gain, num_queries)
    return chunked_attention(query, key, value, scores_of, scale=scale, num_rows=num_rows)


def biased_by_sums(running_sum: Tensor, gain: Tensor | None, num_queries: int) -> Scores:
    """The scores of that attention."""
    # a constant of a row changes nothing after the softmax, so that no gradient flows through this one
    sum_at_query = running_sum[:, :, running_sum.size(2) - num_queries :].detach()

    def biased(query: Tensor, key: Tensor, tile: Tile) -> Tensor:
        scores = products.scores(query, key)
        bias = running_sum[:, :, None, tile.keys] - sum_at_query[:, :, tile.rows, None]
        bias = bias.to(scores.dtype)
        return scores.add_(bias if gain is None else gain[:, :, tile.rows, None].to(bias.dtype) * bias)

    return biased


def running_sum_of(increments: Tensor, before: Tensor | None = None) -> Tensor:
    """The sums of increments `[B, H, S]` up to and with each, in fp64, going on from `before [B, H]`."""
    sums = increments.double().cumsum(-1)
    return sums if before is None else sums + before[..., None]
