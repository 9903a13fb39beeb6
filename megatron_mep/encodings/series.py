"""Biases whose exponentials are the terms of a series, over which the attention that reaches far back is summed."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Weight, per_head
from megatron_mep.encodings.slopes import Order, alibi_slopes


class SlopedBias(DistanceBias):
    """A bias that is one function, the same for all heads, of y = s_h d with fixed slopes s_h."""

    width: float = Field(1.0, gt=0)
    """Stretches the bias over `width` times the distance: s_h = m_h / width, with ALiBi's slopes m_h."""
    order: Order = "published"
    """Which head has which slope; `balanced` gives tensor ranks like work where windows skip keys."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """The constant slopes, `slope [H]`."""
        return {"slope": Weight(alibi_slopes(num_heads, self.order) / self.width, learned=False)}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        return self.of_scaled(per_head(weights["slope"], distance) * distance)

    @abstractmethod
    def of_scaled(self, scaled: Tensor) -> Tensor:
        """The bias at y = s_h d of any shape."""


class GaussianBias(SlopedBias):
    """b_h(d) = -(s_h d)^2 with ALiBi's slopes, stretched by `width`.

    Stated or learned slopes are `mep` with one kernel, `kernels: [{kernel: gaussian, learned: true}]`.

    Source: "Exploring Transformer Extrapolation", arXiv:2307.10156, the exponent -n^2; slopes as in the authors' code.
    """

    name: Literal["gaussian"] = "gaussian"
    source: ClassVar[str] = "arXiv:2307.10156 and its authors' code"
    formula: ClassVar[str] = "-(s_h d)^2"

    def of_scaled(self, scaled: Tensor) -> Tensor:
        """`-y^2`."""
        return -scaled.square()


class Type1(SlopedBias):
    """b_h(d) = -log(1 + (s_h d)^2), the inverse square, with ALiBi's slopes; its sum over distances converges.

    Formula and slopes are those of the authors' code; that they are the paper's "Type 1" is inferred from its comments.
    Stated or learned slopes are `mep` with one kernel, `kernels: [{kernel: cauchy, learned: true}]`.

    Source: "Exploring Transformer Extrapolation", arXiv:2307.10156.
    """

    name: Literal["type1"] = "type1"
    source: ClassVar[str] = "arXiv:2307.10156 and its authors' code (name inferred)"
    formula: ClassVar[str] = "-log(1 + (s_h d)^2)"

    def of_scaled(self, scaled: Tensor) -> Tensor:
        """`-log(1 + y^2)`."""
        return -torch.log1p(scaled.square())


class Type2(SlopedBias):
    """b_h(d) = -log^2(3 + s_h d) with ALiBi's slopes; its sum over distances converges.

    Formula and slopes are those of the authors' code; that they are the paper's "Type 2" is inferred from its comments.

    Source: "Exploring Transformer Extrapolation", arXiv:2307.10156.
    """

    name: Literal["type2"] = "type2"
    source: ClassVar[str] = "arXiv:2307.10156 and its authors' code (name inferred)"
    formula: ClassVar[str] = "-log^2(3 + s_h d)"

    def of_scaled(self, scaled: Tensor) -> Tensor:
        """`-log^2(3 + y)`."""
        return -torch.log(3 + scaled).square()


Terms = Literal["inverse", "inverse_log", "log_inverse_square", "root", "three_quarters", "five_quarters", "fourth"]


class Series(SlopedBias):
    """b_h(d) = log a(s_h d), a the terms of a series that converges or does not, with ALiBi's slopes.

    Those of the paper besides ALiBi's exp(-y), `gaussian`, `type1` and `type2`, with n near y = s_h d: `inverse`, 1 / n
    as 1 / (1 + y), and `inverse_log`, 1 / (n log n) as 1 / (z e^z) with z = log(3 + y), both of which diverge and serve
    as controls; `log_inverse_square`, log n / n^2 as (1 + log(1 + y)) / (1 + y)^2; `root`, exp(-y^(1/2));
    `three_quarters`, exp(-y^(3/4) / 2); `five_quarters`, exp(-y^(5/4)); `fourth`, exp(-y^4). The formulas are those of
    the authors' code, the names ours.

    Source: "Exploring Transformer Extrapolation", arXiv:2307.10156.
    """

    name: Literal["series"] = "series"
    source: ClassVar[str] = "arXiv:2307.10156 and its authors' code"
    formula: ClassVar[str] = "log a(s_h d)"

    terms: Terms = "inverse"
    """The terms a of the series."""

    def of_scaled(self, scaled: Tensor) -> Tensor:
        """`log a(y)`."""
        match self.terms:
            case "inverse":
                return -torch.log1p(scaled)
            case "inverse_log":
                log = torch.log(3 + scaled)
                return -log - torch.log(log)
            case "log_inverse_square":
                log = torch.log1p(scaled)
                return torch.log1p(log) - 2 * log
            case "root":
                return -scaled.sqrt()
            case "three_quarters":
                return -(scaled**0.75) / 2
            case "five_quarters":
                return -(scaled**1.25)
            case "fourth":
                return -(scaled**4)
