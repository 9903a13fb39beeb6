"""Rectified rotary positions: beyond a window, distances stand still or grow more slowly."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.extrapolation.regions import Region, Regions, RegionTrick, distances


class Rerope(RegionTrick):
    """A key turns against its query by the distance d below the window W, and by W from there on: ReRoPE.

    With `step` k it is leaky ReRoPE, W + (d - W) / k from there on. The published code divides pairs the same way, in
    one pass over a prompt and in decoding alike. Its windows are 512 (as released) and 1024 (in the results it reports)
    for models trained on 4096 tokens; the default is the latter's quarter. It also multiplies queries by
    max(1, log(i + 1) / log L), which here is the trick `log_n`, to be put on the encoding before this one.

    Source: "Rectified Rotary Position Embeddings", Jianlin Su 2023, code bojone/rerope; no paper.
    """

    name: Literal["rerope"] = "rerope"
    source: ClassVar[str] = "Su 2023, code bojone/rerope"
    formula: ClassVar[str] = "d -> min(d, W), or W + (d - W) / k beyond W"

    window: int | None = Field(None, ge=1)
    """W; a quarter of the training length unless stated."""
    step: float | None = Field(None, gt=1)
    """k, how many positions make one beyond the window; `null` for distances that stand still."""

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The rotation by rectified distances."""
        window = self.window or max(train_length // 4, 1)
        return self.put_on(encoding, Rectified, window=window, step=self.step)


class Rectified(Regions):
    """A rotation by rectified distances."""

    window: int
    step: float | None

    def regions(self, query_position: Tensor, key_position: Tensor) -> Iterator[Region]:
        """Pairs within the window, then those beyond it."""
        near = distances(query_position, key_position) < self.window
        yield Region(near, query_position, key_position)
        if self.step is None:
            far = torch.full_like(query_position, self.window), torch.zeros_like(key_position)
        else:
            # fractions of positions in fp64, as fp32 holds but the whole ones
            shifted = query_position.double() + self.window * (self.step - 1)
            far = shifted / self.step, key_position.double() / self.step
        yield Region(~near, *far)
