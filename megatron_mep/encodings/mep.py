"""MEP: multiple kernels of the token distance, averaged."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import DistanceBias, Weight
from megatron_mep.encodings.kernels import AnyKernel, Exponential, Gaussian
from megatron_mep.encodings.slopes import Order


class Mep(DistanceBias):
    """b_h(d) = log sum_k w_k kappa_kh(d), the weights w_k divided by their sum.

    The kernels multiply the un-normalised softmax score, so their weighted mean enters the scores as its logarithm.
    The default is the parameter-free variant, exponential and Gaussian kernels with equal weights and ALiBi's slopes;
    the parameterized variant is `kernels: [{kernel: log}, {kernel: power}]`, or slopes that are `learned`. With the
    geometric `mean`, b_h(d) = sum_k w_k log kappa_kh(d).

    Source: "MEP: Multiple Kernel Learning Enhancing Relative Positional Encoding Length Extrapolation",
    arXiv:2403.17698. Established from its text: a weighted average of distinct kernels, such as exponential and
    Gaussian, with a uniform mean weight and slopes tailored to each kernel, applied to post-softmax scores; a
    parameter-free and a parameterized variant. Reconstructed, since the paper's body was not available to us: that
    post-softmax scores are normalised again once multiplied (and so the logarithm above), that kernels rather than
    their biases are averaged, the Gaussian's slopes, and which kernels the parameterized variant averages. All but the
    first are options.
    """

    name: Literal["mep"] = "mep"
    source: ClassVar[str] = "arXiv:2403.17698 (reconstructed)"
    formula: ClassVar[str] = "log sum_k w_k kappa_kh(d)"

    kernels: tuple[AnyKernel, ...] = Field((Exponential(), Gaussian()), min_length=1)
    """The kernels that are averaged."""
    mean: Literal["arithmetic", "geometric"] = "arithmetic"
    """Which mean of the kernels: the geometric one is the mean of their biases."""
    order: Order = "published"
    """Which head has which slope of ALiBi's series; `balanced` gives tensor ranks like work where windows skip keys."""

    @property
    def learned(self) -> bool:
        """Whether any kernel's weights are trained."""
        return any(kernel.learned for kernel in self.kernels)

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        """The weights of kernel k, each under its name followed by `_k`."""
        weights: dict[str, Weight] = {}
        mistakes: list[Mistake] = []
        for index, kernel in enumerate(self.kernels):
            try:
                own = kernel.weights(num_heads, generator, self.order)
            except ConfigError as error:
                mistakes += [mistake.under(f"kernels[{index}]") for mistake in error.mistakes]
            else:
                weights |= {f"{name}_{index}": weight for name, weight in own.items()}
        if mistakes:
            raise ConfigError(mistakes)
        return weights

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        total = sum(kernel.weight for kernel in self.kernels)
        shares = [kernel.weight / total for kernel in self.kernels]
        decays = [kernel.decay(distance, **_own(weights, index)) for index, kernel in enumerate(self.kernels)]
        if self.mean == "geometric":
            return -torch.stack([share * decay for share, decay in zip(shares, decays, strict=True)]).sum(dim=0)
        # the mean itself underflows fp32 at d = 206 for the steepest of 8 heads, and its gradient is NaN
        logs = [math.log(share) - decay for share, decay in zip(shares, decays, strict=True)]
        return torch.logsumexp(torch.stack(logs), dim=0)


def _own(weights: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """The weights of kernel `index`, under the names that the kernel gave them."""
    suffix = f"_{index}"
    return {name.removesuffix(suffix): weight for name, weight in weights.items() if name.endswith(suffix)}
