"""The kernels of the token distance that MEP averages, each written as kappa(d) = exp(-decay(d)) with decay(0) = 0.

Weights are declared for all heads. A learned one is stored as an unbounded number and made positive in the formula, so
that optimizer, master copy and working copy never disagree about a bound.
"""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import Weight, per_head
from megatron_mep.encodings.slopes import Order, alibi_slopes


class Kernel(Config, ABC):
    """One kernel of the average."""

    kernel: str
    """Chooses the kernel."""
    formula: ClassVar[str]
    weight: float = Field(1.0, gt=0)
    """Its share of the average, relative to the other kernels' weights."""
    learned: bool
    """Whether its weights are trained."""

    @abstractmethod
    def weights(self, num_heads: int, generator: torch.Generator, order: Order = "published") -> dict[str, Weight]:
        """The kernel's weights for all heads, each `[H]`; `order` is that of ALiBi's series where it is drawn on."""

    @abstractmethod
    def decay(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """`-log kappa_h(d)` >= 0 of every head: `[H, *distance.shape]`, 0 at distance 0."""


class SlopedKernel(Kernel):
    """A kernel of s_h d, whose slopes s_h are ALiBi's series divided by a width, or stated."""

    width: float = Field(1.0, gt=0)
    """Stretches the kernel over `width` times the distance: s_h = m_h / width."""
    slopes: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """The slopes m_h of all heads of the model, which no `order` moves; ALiBi's series where absent."""
    learned: bool = False
    """Trains the slopes; they start at the values of the fixed ones."""

    def weights(
        self,
        num_heads: int,
        generator: torch.Generator,  # noqa: ARG002
        order: Order = "published",
    ) -> dict[str, Weight]:
        """The slopes, `slope [H]`."""
        if self.slopes is not None and len(self.slopes) != num_heads:
            raise ConfigError(
                Mistake("slopes", list(self.slopes), f"needs one slope for each of the {num_heads} heads",
                        f"state {num_heads} slopes, or leave them out for ALiBi's series")
            )  # fmt: skip
        stated = None if self.slopes is None else torch.tensor(self.slopes, dtype=torch.float32)
        slope = (alibi_slopes(num_heads, order) if stated is None else stated) / self.width
        return {"slope": Weight(unbounded(slope) if self.learned else slope, learned=self.learned)}

    def slope(self, distance: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """The slopes s_h > 0, shaped to meet the distance."""
        raw = per_head(weights["slope"], distance)
        return softplus(raw) if self.learned else raw


class Exponential(SlopedKernel):
    """kappa_h(d) = exp(-s_h d), the kernel of ALiBi."""

    kernel: Literal["exponential"] = "exponential"
    formula: ClassVar[str] = "exp(-s_h d)"

    def decay(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """`s_h d`."""
        return self.slope(distance, weights) * distance


class Gaussian(SlopedKernel):
    """kappa_h(d) = exp(-(s_h d)^2), or exp(-s_h d^2) where `squared_slope` is false."""

    kernel: Literal["gaussian"] = "gaussian"
    formula: ClassVar[str] = "exp(-(s_h d)^2)"

    squared_slope: bool = True
    """Squares the slope together with the distance; without it, a width stretches by its square root."""

    def decay(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """`(s_h d)^2` or `s_h d^2`."""
        slope = self.slope(distance, weights)
        return (slope * distance).square() if self.squared_slope else slope * distance.square()


class Cauchy(SlopedKernel):
    """kappa_h(d) = 1 / (1 + (s_h d)^2), whose tail falls as a power of the distance: the bias of `type1`."""

    kernel: Literal["cauchy"] = "cauchy"
    formula: ClassVar[str] = "1 / (1 + (s_h d)^2)"

    def decay(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """`log(1 + (s_h d)^2)`."""
        return torch.log1p((self.slope(distance, weights) * distance).square())


class Logarithmic(Kernel):
    """kappa_h(d) = (1 + r2_h d)^(-r1_h) with learned r1, r2 > 0: KERPLE's logarithmic kernel.

    Initial values as in KERPLE's code, r1 = 2 U(0,1) and r2 = U(0,1). Positivity by softplus in place of its clamp.
    Source: arXiv:2205.09921 and its released code.
    """

    kernel: Literal["log"] = "log"
    learned: Literal[True] = True
    """Always: the published kernel has no fixed values."""
    formula: ClassVar[str] = "(1 + r2_h d)^(-r1_h)"

    def weights(
        self,
        num_heads: int,
        generator: torch.Generator,
        order: Order = "published",  # noqa: ARG002
    ) -> dict[str, Weight]:
        """`r1 [H]` and `r2 [H]`, unbounded."""
        return {
            "r1": Weight(unbounded(2 * _uniform(num_heads, generator))),
            "r2": Weight(unbounded(_uniform(num_heads, generator))),
        }

    def decay(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """`r1_h log(1 + r2_h d)`."""
        r1, r2 = (softplus(per_head(weights[name], distance)) for name in ("r1", "r2"))
        return r1 * torch.log1p(r2 * distance)


class Power(Kernel):
    """kappa_h(d) = exp(-r1_h d^r2_h) with learned r1 > 0 and 0 < r2 < 2: KERPLE's power kernel.

    Initial values as in KERPLE's code, r1 = U(0,1) and r2 = 2 U(0,1). Softplus and a scaled sigmoid in place of its
    clamps. The exponential kernel is r2 = 1, the Gaussian the limit r2 = 2.
    Source: arXiv:2205.09921 and its released code.
    """

    kernel: Literal["power"] = "power"
    learned: Literal[True] = True
    """Always: the published kernel has no fixed values."""
    formula: ClassVar[str] = "exp(-r1_h d^r2_h)"

    def weights(
        self,
        num_heads: int,
        generator: torch.Generator,
        order: Order = "published",  # noqa: ARG002
    ) -> dict[str, Weight]:
        """`r1 [H]` and `r2 [H]`, unbounded."""
        return {
            "r1": Weight(unbounded(_uniform(num_heads, generator))),
            "r2": Weight(torch.logit(_uniform(num_heads, generator))),
        }

    def decay(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """`r1_h d^r2_h`."""
        r1 = softplus(per_head(weights["r1"], distance))
        r2 = 2 * torch.sigmoid(per_head(weights["r2"], distance))
        # autograd takes d/dr2 of 0^r2 to be 0, and not 0 * log 0 as exp(r2 log d) would have it
        return r1 * distance**r2


class PowerLogarithmic(Kernel):
    """kappa_h(d) = (1 + r2_h d^r3_h)^(-r1_h) with learned r1, r2 > 0 and 0 < r3 < 2: KERPLE's form of three parameters.

    It is the logarithmic kernel at r3 = 1. Reconstructed: the initial values r1 = 2 U(0,1), r2 = U(0,1) and
    r3 = 2 U(0,1), those that KERPLE's code gives the logarithmic kernel and the power kernel's exponent.
    Source: arXiv:2205.09921, whose released code does not have it.
    """

    kernel: Literal["3log"] = "3log"
    learned: Literal[True] = True
    """Always: the published kernel has no fixed values."""
    formula: ClassVar[str] = "(1 + r2_h d^r3_h)^(-r1_h)"

    def weights(
        self,
        num_heads: int,
        generator: torch.Generator,
        order: Order = "published",  # noqa: ARG002
    ) -> dict[str, Weight]:
        """`r1 [H]`, `r2 [H]` and `r3 [H]`, unbounded."""
        logarithmic = Logarithmic().weights(num_heads, generator)
        return logarithmic | {"r3": Weight(torch.logit(_uniform(num_heads, generator)))}

    def decay(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """`r1_h log(1 + r2_h d^r3_h)`."""
        r1, r2 = (softplus(per_head(weights[name], distance)) for name in ("r1", "r2"))
        r3 = 2 * torch.sigmoid(per_head(weights["r3"], distance))
        return r1 * torch.log1p(r2 * distance**r3)


AnyKernel = Annotated[
    Exponential | Gaussian | Cauchy | Logarithmic | Power | PowerLogarithmic, Field(discriminator="kernel")
]


def unbounded(positive: Tensor) -> Tensor:
    """The number whose softplus is `positive`, computed in fp64: the slope 2^-8 then keeps 21 of its 24 bits."""
    wide = positive.double()
    return (wide + torch.log(-torch.expm1(-wide))).to(positive.dtype)


def _uniform(num_heads: int, generator: torch.Generator) -> Tensor:
    """U(0,1) kept off the ends, where its logarithm and logit are infinite: KERPLE's lower bound on both sides."""
    bound = 0.01
    return torch.rand(num_heads, generator=generator, dtype=torch.float32) * (1 - 2 * bound) + bound
