"""What an encoding does to scores before any text is read: numbers to print and to draw."""

import torch
from torch import Tensor

from megatron_mep.encodings import products
from megatron_mep.encodings.base import DistanceBias, Encoding, PairScores, PositionBias, Rotation, ScoreMix
from megatron_mep.encodings.placement import Placed

MEANING: dict[type[Encoding], str] = {
    DistanceBias: "bias added to the scaled scores",
    PositionBias: "bias added to the scaled scores",
    ScoreMix: "scores made of scores that are zero",
    PairScores: "score of a query and a key of ones, over that without an encoding",
    Rotation: "score of a query and a key of ones, over that without an encoding",
}


def meaning(encoding: Encoding) -> str | None:
    """What `effect` gives for an encoding; `None` where it depends on what tokens say."""
    return next((told for kind, told in MEANING.items() if isinstance(encoding, kind)), None)


def effect(encoding: Encoding, weights: dict[str, Tensor], at_query: Tensor, num_heads: int, head_size: int) -> Tensor:
    """What the encoding makes of pairs of tokens that say nothing.

    Args:
        encoding: One with a `meaning`.
        weights: Those of a layer, as `layer_weights` declares them.
        at_query: Positions of some queries in int64, `[Q]`, ascending.
        num_heads: H.
        head_size: D.

    Returns:
        `[H, Q, K]` in fp64 for the keys up to the last query; NaN in the future of a query.
    """
    at_key = torch.arange(int(at_query[-1]) + 1)
    weights = {name: weight.double() for name, weight in weights.items()}
    query, key = (torch.ones(1, num_heads, len(at), head_size, dtype=torch.float64) for at in (at_query, at_key))
    positions = _positions(encoding, at_key)
    at_queries = positions[..., at_query]
    match encoding:
        case DistanceBias():
            found = encoding.of_distance((at_queries[:, None] - positions).clamp(min=0), **weights)
        case PositionBias():
            found = encoding.of_positions(at_queries, positions, **weights)
        case ScoreMix():
            zeros = query.new_zeros(1, num_heads, len(at_query), len(at_key))
            found = encoding.of_scores(zeros, torch.zeros_like(query), at_queries, positions, **weights)[0]
        case PairScores():
            found = encoding.of_pairs(query / head_size, key, at_queries, positions, **weights)[0]
        case Rotation():
            turned = [
                encoding.turned(heads.permute(2, 0, 1, 3), at, **weights).permute(1, 2, 0, 3)
                for heads, at in ((query / head_size, at_queries), (key, positions))
            ]
            found = products.scores(*turned)[0]
        case _:
            raise AssertionError(f"{encoding.name} has no effect of its own")
    future = at_key > at_query[:, None]
    return found.detach().expand(num_heads, -1, -1).masked_fill(future, torch.nan)


def _positions(encoding: Encoding, at_key: Tensor) -> Tensor:
    """Where the encoding places tokens that are all alike: `[K]`, or `[T, 1, K]`."""
    if isinstance(encoding, Placed):
        return encoding.places(torch.zeros_like(at_key)[None], training=False).double()
    return at_key.double()
