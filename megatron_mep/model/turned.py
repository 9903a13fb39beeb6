"""Queries and keys as their positions leave them, before they meet."""

import torch
from torch import Tensor

from megatron_mep.encodings.base import Encoding, Rotation
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Placed
from megatron_mep.parallel.context import Context

ByToken = tuple[Tensor, Tensor, Tensor]
"""Queries `[Q, B, H, D]`, keys `[K, B, G, D]` and values `[K, B, G, E]`."""


def positions(encoding: Encoding, num_keys: int, places: Tensor | None, device: torch.device) -> Tensor:
    """Those of all keys of the sequence: `[K]`, or `[T, B, K]` where the encoding is `Placed`."""
    if not isinstance(encoding, Placed):
        return torch.arange(num_keys, dtype=torch.float32, device=device)
    assert places is not None, "the model must be built as an EncodedGPT"
    assert places.size(-1) == num_keys, f"places of {places.size(-1)} of {num_keys} keys"
    return places.to(torch.float32)


def turned(
    encoding: Encoding, by_token: ByToken, position: Tensor, weights: dict[str, Tensor], context: Context
) -> ByToken:
    """Queries and keys turned by a `Rotation`, and multiplied by what its or another encoding's queries have as factor.

    Args:
        encoding: What acts in the layer.
        by_token: The queries are the last of the keys. Where context ranks share the sequence, both are this rank's.
        position: That of all keys of the sequence, as `positions` returns it.
        weights: As the formula takes them.
        context: The ranks that share the sequence.
    """
    query, key, value = by_token
    at_keys = context.own(position, -1)
    at_queries = at_keys[..., len(key) - len(query) :]
    if isinstance(encoding, Rotation):
        if encoding.turns_heads_apart:
            copies = query.shape[2] // key.shape[2]
            key, value = (tensor.repeat_interleave(copies, dim=2) for tensor in (key, value))
        last = position[..., -1:] if context.size > 1 else position[..., :0]
        query, key = (
            _with_last(encoding, heads, at, last, weights) for heads, at in ((query, at_queries), (key, at_keys))
        )
    factor = encoding.query_factor(at_queries)
    if factor is not None:
        query = (query * factor[:, None, None, None]).to(query.dtype)
    return query, key, value


def turned_by_states(encoding: Carried, by_token: ByToken, states: Tensor | None, hands_on: bool) -> ByToken:
    """Queries and keys turned by the states `[K, B, H, D]` of the keys, and values that end with these if handed on."""
    assert states is not None, "the layer must be a CarryingLayer"
    query, key, value = by_token
    assert len(states) == len(key), f"states of {len(states)} of {len(key)} keys"
    copies = query.shape[2] // key.shape[2]
    key, value = (tensor.repeat_interleave(copies, dim=2) for tensor in (key, value))
    query, key = encoding.turned(query, states[len(key) - len(query) :]), encoding.turned(key, states)
    # as one value, so that both are averaged by the same weights, under dropout too
    return query, key, torch.cat((value, states.to(value.dtype)), dim=-1) if hands_on else value


def _with_last(encoding: Rotation, heads: Tensor, position: Tensor, last: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Heads turned in the company of one at the last position, if there is one: some rotations follow the length."""
    num_last = last.size(-1)
    if num_last == 0:
        return encoding.turned(heads, position, **weights)
    company = torch.cat((heads, heads[-num_last:]))
    return encoding.turned(company, torch.cat((position, last), dim=-1), **weights)[:-num_last]
