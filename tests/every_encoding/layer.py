"""An encoding in one layer of attention, on one process and by nothing but its own formula."""

from functools import partial

import torch
from torch import Tensor

from megatron_mep.attention.key_bias import key_bias_attention, running_sum_of
from megatron_mep.attention.pair_scores import pair_scores_attention
from megatron_mep.attention.plain import plain_attention
from megatron_mep.attention.position_bias import position_bias_attention
from megatron_mep.attention.reference import dense_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.encodings.base import (
    DistanceBias,
    Encoding,
    KeyBias,
    LayerSizes,
    PairScores,
    PositionBias,
    Rotation,
    ScoreMix,
)
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Embedded, Placed

HEAD_SIZE, NUM_HEADS = 8, 12
VOCABULARY = 300


def sizes_of(num_heads: int) -> LayerSizes:
    """Sizes of a layer in miniature."""
    return LayerSizes(num_heads, num_heads * HEAD_SIZE, HEAD_SIZE)


def weights_of(encoding: Encoding, num_heads: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The weights of one layer as first drawn, those that learn with gradients."""
    declared = encoding.layer_weights(sizes_of(num_heads), torch.Generator().manual_seed(7))
    return {name: weight.value.to(dtype).requires_grad_(weight.learned) for name, weight in declared.items()}


def random(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same in every type."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def attend(
    encoding: Encoding, hidden: Tensor, weights: dict[str, Tensor], num_heads: int, heads: slice = slice(None)
) -> Tensor:
    """Attention over hidden states `[S, B, hidden_size]` of some of the heads: `[B, H, S, D]`.

    Queries, keys and values are fixed projections of them; tokens are fixed too.
    """
    length, num_samples, hidden_size = hidden.shape
    projection = random(3, hidden_size, num_heads * HEAD_SIZE, seed=1).to(hidden.dtype) / hidden_size**0.5
    query, key, value = ((hidden @ each).unflatten(-1, (num_heads, HEAD_SIZE))[:, :, heads] for each in projection)
    position = _positions(encoding, num_samples, length).to(hidden.dtype)
    if isinstance(encoding, Rotation):
        query, key = (encoding.turned(each, position, **weights) for each in (query, key))
    if isinstance(encoding, Carried):
        return _attend_again(encoding, hidden, query, key, value, weights)
    factor = encoding.query_factor(position)
    if factor is not None:
        query = query * factor[:, None, None, None]
    query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    scale = HEAD_SIZE**-0.5
    match encoding:
        case DistanceBias():
            return dense_attention(query, key, value, encoding.of_distance(position, **weights), scale=scale)
        case PositionBias():
            return position_bias_attention(query, key, value, partial(encoding.of_positions, **weights), scale=scale)
        case KeyBias():
            sums, gain = running_sum_of(encoding.increments(hidden, **weights)), encoding.gain(hidden, **weights)
            return key_bias_attention(query, key, value, sums, gain, scale=scale)
        case ScoreMix():
            return score_mix_attention(query, key, value, partial(encoding.of_scores, **weights), scale=scale)
        case PairScores():

            def pairs(query: Tensor, key: Tensor, at_query: Tensor, at_key: Tensor) -> Tensor:
                return encoding.of_pairs(query, key, position[..., at_query], position[..., at_key], **weights)

            return pair_scores_attention(query, key, value, pairs, scale=scale)
    return plain_attention(query, key, value, scale=scale)


def _positions(encoding: Encoding, num_samples: int, length: int) -> Tensor:
    """Where the tokens stand: `[S]`, or `[T, B, S]` where the encoding is `Placed`."""
    if not isinstance(encoding, Placed):
        return torch.arange(length)
    tokens = torch.arange(length * num_samples).reshape(num_samples, length) * 37 % VOCABULARY
    return encoding.places(tokens, training=False)


def placed(encoding: Encoding, at: Tensor) -> Tensor:
    """Positions as the encoding is given them: the same numbers in every track."""
    if not isinstance(encoding, Placed):
        return at.float()
    tracks = encoding.places(torch.zeros(1, 2, dtype=torch.int64), training=False).size(0)
    return at.float().expand(tracks, 1, -1)


def vectors_of(encoding: Encoding, num_heads: int, length: int) -> Tensor | None:
    """What is added to the embeddings of the first tokens, in fp64."""
    if not isinstance(encoding, Embedded):
        return None
    declared = encoding.embedding_weights(sizes_of(num_heads), torch.Generator().manual_seed(7))
    weights = {name: weight.value.double() for name, weight in declared.items()}
    return encoding.added(placed(encoding, torch.arange(length)).double(), num_heads * HEAD_SIZE, **weights).double()


def _attend_again(
    encoding: Carried, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: dict[str, Tensor]
) -> Tensor:
    """Attention of a second layer with the same queries, keys and values, turned by the states that the first made."""
    states = encoding.initial(torch.arange(len(query), dtype=hidden.dtype), HEAD_SIZE)[:, None, None].expand_as(query)

    def attend(states: Tensor, value: Tensor) -> Tensor:
        turned = (encoding.turned(each, states) for each in (query, key))
        by_head = (each.permute(1, 2, 0, 3) for each in (*turned, value))
        return plain_attention(*by_head, scale=HEAD_SIZE**-0.5)

    attended = attend(states, states).permute(2, 0, 1, 3)
    return attend(encoding.updated(states, attended, hidden, **weights), value)


def learns_in_layers(encoding: Encoding) -> bool:
    """Whether weights of attention are trained; those of embeddings are others."""
    return encoding.learned


def acts_on_embeddings(encoding: Encoding) -> bool:
    """Whether it adds vectors to the embeddings."""
    return isinstance(encoding, Embedded)
