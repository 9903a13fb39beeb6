"""Causal attention by chunks of queries, whose scores may be changed in any way on their path to the softmax.

A chunk's scores, and all that was made for them, live no longer than the chunk: the backward pass makes them anew.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megatron_mep.attention.tiles import Tile, row_tiles

Scores = Callable[[Tensor, Tensor, Tile], Tensor]
"""`(query [B, H, rows, D], key [B, G, keys, D], tile)` -> scores `[B, H, rows, keys]`, the query scaled, all in fp32
or wider.

What it says of keys in the future is not read, but must not be NaN.
"""

NUM_ROWS = 64
"""Queries of a chunk: enough for fast products, and few enough for what an encoding computes for each pair."""


def chunked_attention(
    query: Tensor, key: Tensor, value: Tensor, scores_of: Scores, *, scale: float, num_rows: int
) -> Tensor:
    """Causal softmax attention over the scores that `scores_of` returns, computed in fp32 or wider.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        scores_of: Called once a chunk in the forward pass and once in the backward pass. Gradients reach whatever
            tensors it reads.
        scale: Factor of the scores, usually D ** -0.5.
        num_rows: Queries of one chunk; what it holds at once is a few times `[B, H, num_rows, K]`.

    Returns:
        `[B, H, Q, D]` in the query's type.
    """
    num_heads, num_queries, num_keys = query.size(1), query.size(2), key.size(2)
    assert num_heads % key.size(1) == 0, f"{num_heads} heads do not split over {key.size(1)} groups"
    assert num_queries <= num_keys, f"{num_queries} queries cannot be the last of {num_keys} positions"
    dtype = torch.promote_types(query.dtype, torch.float32)
    # widened here, the gradients of all chunks are summed in that type
    scaled, wide_key, wide_value = scale * query.to(dtype), key.to(dtype), value.to(dtype)
    outputs = [
        checkpoint(
            _attend,
            scaled[:, :, tile.rows],
            wide_key[:, :, tile.keys],
            wide_value[:, :, tile.keys],
            scores_of,
            tile,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for tile in row_tiles(num_queries, num_keys, num_rows)
    ]
    return torch.cat(outputs, dim=2).to(query.dtype)


def weights_of(query: Tensor, key: Tensor, scores_of: Scores, tile: Tile) -> Tensor:
    """The attention weights `[B, H, rows, keys]` of a tile's scaled queries; zero where the key is in the future."""
    scores = scores_of(query, key, tile).to(query.dtype)
    return scores.masked_fill(future_of(tile, query.device), -torch.inf).softmax(dim=-1)


def future_of(tile: Tile, device: torch.device) -> Tensor:
    """Which keys are in the future of which queries, `[rows, keys]`."""
    query_position, key_position = positions_of(tile, torch.int64, device)
    return key_position > query_position[:, None]


def positions_of(tile: Tile, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The positions of a tile's queries, `[rows]`, and of its keys, `[keys]`."""
    first = tile.position + 1 - (tile.rows.stop - tile.rows.start)
    position = torch.arange(tile.position + 1, dtype=dtype, device=device)
    return position[first:], position[tile.keys]


def _attend(query: Tensor, key: Tensor, value: Tensor, scores_of: Scores, tile: Tile) -> Tensor:
    group_size = query.size(1) // key.size(1)
    weights = weights_of(query, key, scores_of, tile)
    # the heads of a group side by side, [B, G, group_size * rows, ...], read its values as one
    context = weights.unflatten(1, (-1, group_size)).flatten(2, 3) @ value
    return context.unflatten(2, (group_size, -1)).flatten(1, 2)
