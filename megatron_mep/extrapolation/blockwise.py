"""Blockwise causal attention: a query sees its own block of positions and the one before."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Encoding, PairScores, Rotation
from megatron_mep.encodings.nope import Nope
from megatron_mep.extrapolation.regions import Region, Regions, RegionTrick


class Blockwise(RegionTrick):
    """In blocks of b positions, a query sees the keys of its own block and of the one before.

    With blocks of half the training length, every query beyond the first block sees between a half and all of what it
    could see in training. The paper evaluates xPos under it, and RoPE to compare.

    Source: "A Length-Extrapolatable Transformer", arXiv:2212.10554.
    """

    name: Literal["blockwise"] = "blockwise"
    source: ClassVar[str] = "arXiv:2212.10554"
    formula: ClassVar[str] = "keys with i // b - j // b <= 1"
    acts_on: ClassVar[tuple[type[Encoding], ...]] = (Rotation, DistanceBias, PairScores, Nope)
    needs: ClassVar[str] = "an encoding that acts on a pair by the places of its query and key, or nope"
    moves: ClassVar[bool] = False

    block: int | None = Field(None, ge=1)
    """b; half the training length unless stated."""

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The encoding under the mask."""
        return self.put_on(encoding, InBlocks, block=self.block or max(train_length // 2, 1))


class InBlocks(Regions):
    """An encoding of which two blocks of keys are left."""

    block: int

    def regions(self, query_position: Tensor, key_position: Tensor) -> Iterator[Region]:
        """The pairs that see each other, where they are."""
        query_block, key_block = (torch.floor(position / self.block) for position in (query_position, key_position))
        seen = (query_block[:, None] - key_block <= 1) & (key_position <= query_position[:, None])
        yield Region(seen, query_position, key_position)
