"""CLEX's trained scaling at a stated factor."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.clex import Clex
from megatron_mep.encodings.rotary import angles_at
from megatron_mep.extrapolation.base import Trick, changed


class ClexScaling(Trick):
    """The frequencies that CLEX learned for t = `factor` times the training length, whatever the length is.

    Without it t follows the length, so that text is written under one t after the other. A factor beyond the encoding's
    `max_factor` is one that its network was not trained for.

    Source: "CLEX: Continuous Length Extrapolation for Large Language Models", arXiv:2310.16450, section 3.
    """

    name: Literal["clex_scaling"] = "clex_scaling"
    source: ClassVar[str] = "arXiv:2310.16450, section 3"
    formula: ClassVar[str] = "f_m(ceil(N/L)) -> f_m(t)"

    factor: float = Field(ge=1)
    """How many times the training length, t."""

    def against(self, encoding: Encoding) -> str | None:
        """It needs frequencies that were trained as a function of t."""
        return None if isinstance(encoding, Clex) else "needs the encoding clex, which has learned its frequencies"

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:  # noqa: ARG002
        """The encoding at one t."""
        assert isinstance(encoding, Clex), "it was refused before"
        factor = torch.tensor(self.factor, dtype=torch.float64)

        def angles(_: Any, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:
            return angles_at(position, encoding.frequencies(factor.to(position.device), head_size, **weights))

        return changed(encoding, self, angles=angles)
