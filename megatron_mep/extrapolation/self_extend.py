"""Self-Extend: beyond a window, positions are counted in groups."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.extrapolation.regions import Region, Regions, RegionTrick, distances


class SelfExtend(RegionTrick):
    """A key turns against its query by d = i - j below the window W, by i // G - j // G + W - W // G from there on.

    It reaches G (L - W) + W tokens before any distance is new to a model trained on L. The published code has this
    window and shift, but W / G with its fraction where W is no multiple of G; the paper's floor is taken here. The
    defaults are the code's: G = 8, and W = 1024 for models trained on 4096 tokens.

    Source: "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning", arXiv:2401.01325; code
    datamllab/LongLM.
    """

    name: Literal["self_extend"] = "self_extend"
    source: ClassVar[str] = "arXiv:2401.01325"
    formula: ClassVar[str] = "i // G - j // G + W - W // G beyond W"

    window: int | None = Field(None, ge=1)
    """W, the neighbours that keep their distances; a quarter of the training length unless stated."""
    group: int = Field(8, ge=1)
    """G, the positions that make one beyond the window."""

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The rotation by grouped distances."""
        return self.put_on(encoding, Grouped, window=self.window or max(train_length // 4, 1), group=self.group)


class Grouped(Regions):
    """A rotation by distances that are grouped beyond a window."""

    window: int
    group: int

    def regions(self, query_position: Tensor, key_position: Tensor) -> Iterator[Region]:
        """Neighbours, then the others."""
        near = distances(query_position, key_position) < self.window
        yield Region(near, query_position, key_position)
        query_group, key_group = (torch.floor(position / self.group) for position in (query_position, key_position))
        yield Region(~near, query_group + (self.window - self.window // self.group), key_group)
