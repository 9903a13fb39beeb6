"""Causal attention under an encoding, for sequences that begin at the same token and are read on together."""

from typing import Any

import torch
from torch import Tensor

from megatron_mep.attention.chunked import NUM_ROWS, chunked_attention
from megatron_mep.attention.key_bias import key_bias_attention, running_sum_of
from megatron_mep.attention.pair_scores import pair_scores_attention
from megatron_mep.attention.position_bias import position_bias_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.attention.tiles import Tile
from megatron_mep.encodings import products
from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, PairScores, PositionBias, Rotation, ScoreMix
from megatron_mep.encodings.carried import Carried
from megatron_mep.model.on_scores import acting_on_scores

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries `[B, H, Q, D]`, the last of the keys `[B, G, K, D]`, and values `[B, G, K, E]`."""


def attend(
    encoding: Encoding, heads: Heads, position: Tensor, read: Tensor | None, weights: dict[str, Tensor]
) -> Tensor:
    """The contexts `[B, H, Q, E]` in the type of the queries, computed in fp32 or wider.

    Args:
        encoding: What acts in the layer.
        heads: As they are before they turn.
        position: That of all keys, `[K]`, or `[T, B, K]` where the encoding is `Placed`; fp32.
        read: Where the encoding is a `KeyBias`, the increments `[B, H, K]` of all keys and then the gains of the
            queries, if there are any; where it is `Carried`, the states `[B, H, K, D]` of all keys.
        weights: As the formula takes them.
    """
    query, key, value = turned(encoding, heads, position, read, weights)
    scale = heads[0].size(-1) ** -0.5
    num_keys = key.size(2)
    if isinstance(encoding, KeyBias):
        assert read is not None, "increments are read off hidden states"
        sums, gain = running_sum_of(read[..., :num_keys]), read[..., num_keys:]
        return key_bias_attention(query, key, value, sums, gain if gain.size(-1) else None, scale=scale)
    acting: Any = acting_on_scores(encoding, position, query.size(1), read, weights)
    if isinstance(encoding, DistanceBias):
        return _by_distance(query, key, value, acting, scale)
    match encoding:
        case PositionBias():
            return position_bias_attention(query, key, value, acting, scale=scale)
        case ScoreMix():
            return score_mix_attention(query, key, value, acting, scale=scale)
        case PairScores():
            return pair_scores_attention(query, key, value, acting, scale=scale)
    return _by_distance(query, key, value, None, scale)


def turned(
    encoding: Encoding, heads: Heads, position: Tensor, read: Tensor | None, weights: dict[str, Tensor]
) -> Heads:
    """Queries and keys as their positions or states leave them, queries with the factor of their scores."""
    query, key, value = heads
    at_queries = position[..., key.size(2) - query.size(2) :]
    if isinstance(encoding, Rotation | Carried):
        copies = query.size(1) // key.size(1)
        if isinstance(encoding, Carried) or encoding.turns_heads_apart:
            key, value = (tensor.repeat_interleave(copies, dim=1) for tensor in (key, value))
        queries, keys = (tensor.permute(2, 0, 1, 3) for tensor in (query, key))
        if isinstance(encoding, Rotation):
            queries = encoding.turned(queries, at_queries, **weights)
            keys = encoding.turned(keys, position, **weights)
        else:
            assert read is not None, "states travel beside hidden states"
            states = read.permute(2, 0, 1, 3)
            queries, keys = (
                encoding.turned(queries, states[len(states) - len(queries) :]),
                encoding.turned(keys, states),
            )
            value = torch.cat((value, read.to(value.dtype)), dim=-1)
        query, key = (tensor.permute(1, 2, 0, 3) for tensor in (queries, keys))
    factor = encoding.query_factor(at_queries)
    return query if factor is None else (query * factor[:, None]).to(query.dtype), key, value


def _by_distance(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """With a bias `[H, K]` by distance, or none, as differences of positions and in no type below fp32."""

    def scores_of(query: Tensor, key: Tensor, _: Tile) -> Tensor:
        scores = products.scores(query, key)
        if bias is None:
            return scores
        num_rows, num_keys = scores.shape[-2:]
        at_query = torch.arange(num_keys - num_rows, num_keys, device=bias.device)
        distance = at_query[:, None] - torch.arange(num_keys, device=bias.device)
        return scores + bias[:, distance.clamp(min=0)].to(scores.dtype)

    return chunked_attention(query, key, value, scores_of, scale=scale, num_rows=NUM_ROWS)
