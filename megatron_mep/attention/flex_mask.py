"""The causal mask of FlexAttention, with a window a head, as lists of the blocks that hold anything to compute."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK_KEYS = 128
"""Keys of a block; windows are rounded up to whole ones."""

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`mask(batch, head, query, key)` -> whether the query sees the key."""


def whole_blocks(windows: Sequence[int], num_positions: int) -> tuple[int, ...] | None:
    """Windows rounded up to whole blocks of keys, at most all; None where every head then sees all positions."""
    assert min(windows) >= 1, "a query sees itself"
    most = -(-num_positions // BLOCK_KEYS)
    num_blocks = [min(-(-window // BLOCK_KEYS), most) for window in windows]
    return tuple(BLOCK_KEYS * num for num in num_blocks) if min(num_blocks) < most else None


def causal_mask(windows: Tensor | None, first_query: int) -> Mask:
    """Whether a query sees a key: at distances 0 .. W_h - 1, with windows `[H]`."""

    def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        return first_query + query >= key

    if windows is None:
        return causal

    def windowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        distance = first_query + query - key
        return (distance >= 0) & (distance < windows[head])

    return windowed


# a mask that an evaluation built serves training too, which saves it for the backward pass
@torch.inference_mode(mode=False)
def causal_block_mask(
    windows: tuple[int, ...] | None,
    num_queries: int,
    num_keys: int,
    first_query: int,
    device: torch.device,
    block_queries: int,
) -> BlockMask:
    """The mask by blocks, from the distances at their corners: torch's own way holds every pair.

    A block is a range of positions each way, hence has every distance from its nearest pair to its farthest.
    """
    window = None if windows is None else torch.tensor(windows, dtype=torch.int32, device=device)
    longest = first_query + num_queries if window is None else window[:, None, None]
    query = torch.arange(0, num_queries, block_queries, device=device)[:, None]
    key = torch.arange(0, num_keys, BLOCK_KEYS, device=device)
    query_end, key_end = (query + block_queries).clamp(max=num_queries), (key + BLOCK_KEYS).clamp(max=num_keys)
    nearest, farthest = first_query + query - (key_end - 1), first_query + query_end - 1 - key  # [Q / block, K / block]
    seen = (farthest >= 0) & (nearest < longest)
    # the kernels mask nothing in a whole block, not even what lies beyond the last query or key
    within = (query_end - query == block_queries) & (key_end - key == BLOCK_KEYS)
    whole = within & (nearest >= 0) & (farthest < longest)
    return BlockMask.from_kv_blocks(
        *_by_row(seen & ~whole),
        *_by_row(whole),
        BLOCK_SIZE=(block_queries, BLOCK_KEYS),
        mask_mod=causal_mask(window, first_query),
        seq_lengths=(num_queries, num_keys),
    )


def _by_row(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, `[1, H, rows]`, and the blocks, `[1, H, rows, columns]`, those it has first."""
    blocks = blocks.reshape(1, -1, *blocks.shape[-2:]).int()
    return blocks.sum(-1, dtype=torch.int32), blocks.argsort(dim=-1, descending=True, stable=True).int()
