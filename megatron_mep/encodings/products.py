"""Products by head: of queries and keys, whose heads come in groups, and of hidden states and weights."""

import torch
from torch import Tensor


def scores(query: Tensor, key: Tensor) -> Tensor:
    """Products of queries `[B, H, Q, D]` and keys `[B, G, K, D]`, of which head h reads group h // (H // G)."""
    group_size = query.size(1) // key.size(1)
    # the heads of a group side by side, [B, G, group_size * Q, ...], read its keys as one
    products = query.unflatten(1, (-1, group_size)).flatten(2, 3) @ key.mT
    return products.unflatten(2, (group_size, -1)).flatten(1, 2)


def projected(hidden: Tensor, weight: Tensor) -> Tensor:
    """Hidden states `[S, B, C]` times the weights `[H, C]` of each head: `[B, H, S]` in fp32 or wider."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    return torch.einsum("sbc,hc->bhs", hidden.to(dtype), weight.to(dtype))
