"""What attention under an encoding is given beside queries, keys and values."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, PairScores, PositionBias, ScoreMix

Acting = Tensor | Callable[..., Tensor] | tuple[Any, ...] | None
"""A bias by distance, a function of positions or scores, or the running sums and gains of tokens; see the backends."""


def acting_on_scores(
    encoding: Encoding, position: Tensor, num_heads: int, read: Tensor | None, weights: dict[str, Tensor]
) -> Acting:
    """What acts on the scores of queries that are the last of the keys at `position`, of this many heads.

    Args:
        encoding: What acts in the layer.
        position: Those of all keys, `[K]`, or `[T, B, K]` where the encoding is `Placed`.
        num_heads: H, of the queries.
        read: Where the encoding reads hidden states, the running sums of all keys and then the gains of the queries.
        weights: As the formula takes them.
    """
    match encoding:
        case DistanceBias():
            return of_heads(encoding, num_heads, weights, position)
        case PositionBias():
            return partial(encoding.of_positions, **weights)
        case ScoreMix():
            return partial(encoding.of_scores, **weights)
        case PairScores():
            return partial(_pairs, encoding.at_length(position.size(-1)), position, weights)
        case KeyBias():
            assert read is not None, "the layer must be built with ReadingAttention"
            num_keys = len(position)
            return read[..., :num_keys], read[..., num_keys:] if read.size(-1) > num_keys else None
    return None


def of_heads(encoding: DistanceBias, num_heads: int, weights: dict[str, Tensor], distance: Tensor) -> Tensor:
    """The biases `[H, *distance.shape]` of all heads of this rank."""
    return encoding.of_distance(distance, **weights).expand(num_heads, *distance.shape)


def _pairs(
    encoding: PairScores,
    position: Tensor,
    weights: dict[str, Tensor],
    query: Tensor,
    key: Tensor,
    query_index: Tensor,
    key_index: Tensor,
) -> Tensor:
    """The scores of some of the queries and keys that stand at `position [K]` or `[T, B, K]`."""
    position = position.to(query.dtype)
    return encoding.of_pairs(query, key, position[..., query_index], position[..., key_index], **weights)
