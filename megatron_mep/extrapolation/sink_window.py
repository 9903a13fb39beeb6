"""A window of near keys and the first few of all: the lambda-shaped mask of LM-Infinite."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.extrapolation.regions import AnyRegionTrick, Region, Regions, distances


class SinkWindow(AnyRegionTrick):
    """Keys at distances below W are seen as ever, the first `num_sinks` keys from the distance W, all others not.

    The code lets mask and cap be two settings and its converters set both to the training length, as here. The paper's
    re-attention to some keys in the middle, of the largest scores, is no part of this.

    Source: "LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models", arXiv:2308.16137;
    code Glaciohound/LM-Infinite.
    """

    name: Literal["sink_window"] = "sink_window"
    source: ClassVar[str] = "arXiv:2308.16137"
    formula: ClassVar[str] = "keys with d < W, and the first n at min(d, W)"

    window: int | None = Field(None, ge=1)
    """W; the training length unless stated."""
    num_sinks: int = Field(10, ge=0)
    """How many keys at the beginning are seen however far they are."""

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The encoding under the mask."""
        return self.put_on(encoding, SinksAndWindow, window=self.window or train_length, num_sinks=self.num_sinks)


class SinksAndWindow(Regions):
    """An encoding by distance, of which near keys and sinks are left."""

    window: int
    num_sinks: int

    def regions(self, query_position: Tensor, key_position: Tensor) -> Iterator[Region]:
        """Near keys, then sinks that are far."""
        distance = distances(query_position, key_position)
        near = distance < self.window
        yield Region(near & (distance >= 0), query_position, key_position)
        sinks = ~near & (key_position < self.num_sinks)
        yield Region(sinks, torch.full_like(query_position, self.window), torch.zeros_like(key_position))
