"""The mask of FlexAttention by blocks: torch's own, without a number for every pair."""

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from megatron_mep.attention.flex_mask import causal_block_mask, whole_blocks
from tests.attention.oracle import LargestStorage
from tests.support.tolerance import assert_exact_equal

CPU = torch.device("cpu")
WINDOWS = (128, 256, 1024)


def blocks_seen(mask: BlockMask) -> dict[str, list[list[int]]]:
    """The blocks that each row of blocks lists, by kind and direction."""
    pairs = {
        "keys, partial": (mask.kv_num_blocks, mask.kv_indices),
        "keys, whole": (mask.full_kv_num_blocks, mask.full_kv_indices),
        "queries, partial": (mask.q_num_blocks, mask.q_indices),
        "queries, whole": (mask.full_q_num_blocks, mask.full_q_indices),
    }
    return {
        name: [row[:count].tolist() for count, row in zip(counts.flatten(), indices.flatten(0, 2), strict=True)]
        for name, (counts, indices) in pairs.items()
    }


@pytest.mark.parametrize("windows", [None, WINDOWS], ids=["causal", "windowed"])
@pytest.mark.parametrize(
    ("queries", "keys", "first"), [(640, 640, 0), (600, 600, 0), (1, 600, 599), (200, 700, 500), (256, 384, 640)]
)
@pytest.mark.parametrize("block_queries", [128, 256])
def test_blocks_are_those_that_torch_finds_pair_by_pair(queries, keys, first, windows, block_queries):
    ours = causal_block_mask(windows, queries, keys, first, CPU, block_queries)
    heads = 1 if windows is None else len(windows)
    torchs = create_block_mask(ours.mask_mod, 1, heads, queries, keys, "cpu", BLOCK_SIZE=(block_queries, 128))
    assert ours.shape == torchs.shape == (1, heads, queries, keys)
    assert ours.BLOCK_SIZE == torchs.BLOCK_SIZE
    assert blocks_seen(ours) == blocks_seen(torchs)


@pytest.mark.parametrize("windows", [None, WINDOWS], ids=["causal", "windowed"])
def test_pairs_are_those_at_distances_inside_the_windows(windows):
    queries, keys, first = 300, 500, 200
    mask = causal_block_mask(windows, queries, keys, first, CPU, 128).mask_mod
    distance = torch.arange(first, first + queries)[:, None] - torch.arange(keys)
    longest = torch.tensor(windows or (keys,))[:, None, None]
    assert_exact_equal(
        create_mask(mask, 1, len(longest), queries, keys, "cpu")[0], (distance >= 0) & (distance < longest)
    )


def test_far_blocks_are_skipped_head_by_head():
    mask = causal_block_mask(WINDOWS, 1024, 1024, 0, CPU, 128)
    counts = (mask.kv_num_blocks + mask.full_kv_num_blocks)[0]
    assert counts.tolist() == [[min(row, reach) + 1 for row in range(8)] for reach in (1, 2, 8)]


def test_a_mask_built_while_evaluating_serves_training():
    with torch.inference_mode():
        mask = causal_block_mask(WINDOWS, 300, 300, 0, CPU, 128)
    tensors = [part for part in mask.as_tuple() if isinstance(part, torch.Tensor)]
    assert len(tensors) == 8
    assert not any(tensor.is_inference() for tensor in tensors)


def test_memory_is_that_of_the_blocks():
    with LargestStorage() as largest:
        causal_block_mask(WINDOWS, 16384, 16384, 0, CPU, 128)
    assert largest.numel <= 4 * len(WINDOWS) * 128**2


@pytest.mark.parametrize(
    ("windows", "positions", "whole"),
    [
        ((1, 128, 129), 300, (128, 128, 256)),
        ((1, 300, 10**9), 300, (128, 384, 384)),
        ((257, 300, 10**9), 300, None),
        ([128], 129, (128,)),
        ([128], 128, None),
        ([1, 2, 3], 4, None),
    ],
)
def test_windows_grow_to_whole_blocks(windows, positions, whole):
    assert whole_blocks(windows, positions) == whole
