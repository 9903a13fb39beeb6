"""Position interpolation: a longer sequence pressed into the positions of training."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding, Rotation
from megatron_mep.encodings.placement import Placed
from megatron_mep.encodings.rotary import Rotary
from megatron_mep.encodings.sinusoidal import Sinusoidal
from megatron_mep.extrapolation.base import Trick, changed, replaced


class Interpolation(Trick):
    """Positions are divided by `factor`, of rotations as in the paper, and of sinusoids that embeddings take on.

    Source: "Extending Context Window of Large Language Models via Positional Interpolation", arXiv:2306.15595, eq. 4.
    """

    name: Literal["interpolation"] = "interpolation"
    source: ClassVar[str] = "arXiv:2306.15595, eq. 4"
    formula: ClassVar[str] = "i -> i / s"

    factor: float = Field(ge=1)
    """How many times the training length is pressed into it, s."""

    def against(self, encoding: Encoding) -> str | None:
        """It needs what is a function of positions between whole ones too, as it was trained."""
        if not isinstance(encoding, Rotation | Sinusoidal) or isinstance(encoding, Placed):
            return "needs an encoding that turns queries and keys by their positions"
        if replaced(encoding) & {"angles", "frequencies", "added"}:
            return "needs positions that no other trick has changed"
        return None

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:  # noqa: ARG002
        """The encoding at divided positions."""
        if isinstance(encoding, Rotary):
            return self._of_frequencies(encoding)
        if isinstance(encoding, Sinusoidal):
            return self._of_sinusoids(encoding)
        assert isinstance(encoding, Rotation), "it was refused before"

        def angles(_: Encoding, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:
            return encoding.angles(self._divided(position), head_size, **weights)

        def turned(_: Encoding, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
            return encoding.turned(heads, self._divided(position), **weights)

        return changed(encoding, self, angles=angles, turned=turned)

    def _of_frequencies(self, encoding: Rotary) -> Encoding:
        def frequencies(_: Encoding, head_size: int) -> Tensor:
            return encoding.frequencies(head_size) / self.factor

        return changed(encoding, self, frequencies=frequencies)

    def _of_sinusoids(self, encoding: Sinusoidal) -> Encoding:
        def added(_: Encoding, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:
            return encoding.added(self._divided(position), hidden_size, **weights)

        return changed(encoding, self, added=added)

    def _divided(self, position: Tensor) -> Tensor:
        # at 131071 an fp32 fraction is off by 2^-8 of a position
        return position.double() / self.factor
