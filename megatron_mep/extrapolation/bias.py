"""Tricks that change a bias: a flatter one, and one that keeps far keys above what softmax can hold."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias, Encoding, PositionBias
from megatron_mep.encodings.mep import Mep
from megatron_mep.extrapolation.base import Trick, changed, replaced
from megatron_mep.extrapolation.window import WindowAlone


class AlibiInterpolation(Trick):
    """Slopes are divided by `factor`: distances are pressed into those of training, for each kernel of MEP too.

    The paper's factor is the length that is read over the training length, where it is more than 1; here it is stated,
    so that one text has the same bias at every step of decoding.

    Source: "Position Interpolation Improves ALiBi Extrapolation", arXiv:2310.13017; reconstructed from a summary.
    """

    name: Literal["alibi_interpolation"] = "alibi_interpolation"
    source: ClassVar[str] = "arXiv:2310.13017 (reconstructed)"
    formula: ClassVar[str] = "m_h -> m_h / s"

    factor: float = Field(ge=1)
    """How many times the training length is read, s."""

    def against(self, encoding: Encoding) -> str | None:
        """It needs slopes, as they were trained."""
        if not isinstance(encoding, Alibi | Mep) or "of_distance" in replaced(encoding):
            return "needs a bias of slopes times the distance, as it was trained"
        return None

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:  # noqa: ARG002
        """The bias at divided distances."""
        assert isinstance(encoding, DistanceBias), "it was refused before"

        def of_distance(_: Encoding, distance: Tensor, **weights: Tensor) -> Tensor:
            return encoding.of_distance(distance / self.factor, **weights)

        return changed(encoding, self, of_distance=of_distance)


class BiasClamp(Trick):
    """No bias is below `bound`: far keys keep a weight, where it would be lost as zero.

    Below -133 ln 2 = -92.2, the logarithm of the least positive number in bf16, a weight is lost whatever the others
    are. One of e^-92 is kept and still counts for nothing unless scores make up for it, so a bound is stated, and not
    taken to be that. Distances that another trick excludes stay excluded. A clamped bias does not decay:
    `model.attention_epsilon` then leaves out little.

    Source: "When Attention Goes Blind", arXiv:2608.03994, its clamped bias; reconstructed from a summary.
    """

    name: Literal["bias_clamp"] = "bias_clamp"
    source: ClassVar[str] = "arXiv:2608.03994 (reconstructed)"
    formula: ClassVar[str] = "b -> max(b, bound)"

    bound: float = Field(le=0)
    """The least bias, such as -8; one that no bias is below changes nothing."""

    def against(self, encoding: Encoding) -> str | None:
        """It needs a bias that is more than a window."""
        if isinstance(encoding, DistanceBias | PositionBias) and not isinstance(encoding, WindowAlone):
            return None
        return "needs a bias by distance or by positions"

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:  # noqa: ARG002
        """The bias, clamped."""
        if isinstance(encoding, DistanceBias):
            by_distance = encoding.of_distance

            def of_distance(_: Encoding, distance: Tensor, **weights: Tensor) -> Tensor:
                return self._clamped(by_distance(distance, **weights))

            return changed(encoding, self, of_distance=of_distance)
        assert isinstance(encoding, PositionBias), "it was refused before"
        by_positions = encoding.of_positions

        def of_positions(_: Encoding, query_position: Tensor, key_position: Tensor, **weights: Tensor) -> Tensor:
            return self._clamped(by_positions(query_position, key_position, **weights))

        return changed(encoding, self, of_positions=of_positions)

    def _clamped(self, bias: Tensor) -> Tensor:
        return torch.where(bias == -torch.inf, bias, bias.clamp(min=self.bound))
