"""Position interpolation: a longer sequence pressed into the positions of training."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding, LayerSizes, Rotation, Weight
from megatron_mep.encodings.placement import Placed
from megatron_mep.extrapolation.base import Trick


class Interpolation(Trick):
    """Positions are divided by `factor`.

    Source: "Extending Context Window of Large Language Models via Positional Interpolation", arXiv:2306.15595, eq. 4.
    """

    name: Literal["interpolation"] = "interpolation"
    source: ClassVar[str] = "arXiv:2306.15595, eq. 4"
    formula: ClassVar[str] = "i -> i / s"

    factor: float = Field(gt=1)
    """How many times the training length is pressed into it, s."""

    def against(self, encoding: Encoding) -> str | None:
        """It stretches rotations."""
        if isinstance(encoding, Rotation) and not isinstance(encoding, Placed):
            return None
        return "needs an encoding that turns queries and keys by their positions"

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:  # noqa: ARG002
        """The rotation at divided positions."""
        assert isinstance(encoding, Rotation), "it was refused before"
        return Interpolated(name=f"{encoding.name} + {self.name}", inner=encoding, factor=self.factor)


class Interpolated(Rotation):
    """A rotation at divided positions."""

    name: str
    inner: Rotation
    factor: float

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """Those of the rotation."""
        return self.inner.layer_weights(sizes, generator)

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:
        """The angles at the divided positions."""
        return self.inner.angles(position / self.factor, head_size, **weights)

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        """Queries or keys `[S, B, H, D]`, turned as by the rotation at the divided positions."""
        return self.inner.turned(heads, position / self.factor, **weights)
