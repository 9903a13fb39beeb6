"""Sizes of the blocks that each kernel works on, by device: the one place that states them."""

from typing import NamedTuple

import torch

HEAD_SIZES = (16, 32, 64, 128)
"""Of a head, that the kernels are compiled for."""


class Launch(NamedTuple):
    """How one kernel is cut and run."""

    rows: int
    """Queries of a tile."""
    keys: int
    """Keys of a tile."""
    num_warps: int
    num_stages: int
    """How many tiles are on their way from memory at once."""

    @property
    def options(self) -> dict[str, int]:
        """As a kernel takes them."""
        return {
            "ROWS": self.rows,
            "KEYS": self.keys,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            # said here, since Triton 3.10 no longer multiplies and adds in one step unless told to
            "enable_fp_fusion": True,
        }


class Blocks(NamedTuple):
    """Of all kernels."""

    forward: Launch
    query_gradient: Launch
    key_value_gradient: Launch
    bias_gradient: Launch


LARGEST_BLOCK = 128


def blocks_of(capability: tuple[int, int], head_size: int, itemsize: int) -> Blocks:
    """The blocks for a CUDA device, chosen by compiling alone, with `tools/compile_triton.py`, and not yet by time.

    No kernel spills registers on capability 8.0 and 9.0; on 8.6 and 10.0 some spill up to 48 bytes.

    Args:
        capability: Of the device: (9, 0) is Hopper. It and its data-centre successor give a program 227 KiB of shared
            memory; on all others the blocks take no more than 99 KiB.
        head_size: D.
        itemsize: Bytes of a number of query, key and value.
    """
    large, wide = capability[0] in (9, 10), head_size > 64
    if itemsize == torch.float32.itemsize:
        return Blocks(Launch(32, 32, 4, 1), Launch(16, 16, 4, 2), Launch(16, 16, 4, 1), Launch(32, 32, 4, 1))
    if large and wide:
        return Blocks(Launch(128, 64, 8, 2), Launch(128, 64, 8, 2), Launch(32, 64, 8, 2), Launch(64, 64, 8, 2))
    if large:
        return Blocks(Launch(128, 64, 8, 3), Launch(128, 64, 8, 3), Launch(64, 128, 8, 2), Launch(64, 64, 8, 3))
    if wide:
        return Blocks(Launch(128, 32, 8, 3), Launch(64, 64, 8, 2), Launch(64, 64, 8, 2), Launch(32, 32, 8, 2))
    return Blocks(Launch(128, 64, 8, 3), Launch(128, 64, 8, 2), Launch(32, 128, 8, 2), Launch(64, 64, 8, 2))
