"""MEP: multiple kernels of the token distance, averaged."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Weight
from megatron_mep.encodings.kernels import AnyKernel, Exponential, Gaussian


class Mep(DistanceBias):
    """b_h(d) = log sum_k w_k kappa_kh(d), the weights w_k divided by their sum.

    The kernels multiply the un-normalised softmax score, so their weighted mean enters the scores as its logarithm.
    The default is the parameter-free variant, exponential and Gaussian kernels with equal weights and ALiBi's slopes;
    the parameterized variant is `kernels: [{kernel: log}, {kernel: power}]`, or slopes that are `learned`.

    Source: "MEP: Multiple Kernel Learning Enhancing Relative Positional Encoding Length Extrapolation",
    arXiv:2403.17698. Established from its text: a weighted average of distinct kernels, such as exponential and
    Gaussian, with a uniform mean weight and slopes tailored to each kernel, applied to post-softmax scores; a
    parameter-free and a parameterized variant. Reconstructed, since the paper's body was not available to us: the
    renormalised reading of "post-softmax" (and so the logarithm above), the Gaussian's slopes, and which kernels the
    parameterized variant averages. Each of these is an option.
    """

    name: Literal["mep"] = "mep"
    source: ClassVar[str] = "arXiv:2403.17698 (reconstructed)"
    formula: ClassVar[str] = "log sum_k w_k kappa_kh(d)"

    kernels: tuple[AnyKernel, ...] = Field((Exponential(), Gaussian()), min_length=1)
    """The kernels that are averaged."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        """The weights of kernel k, each under its name followed by `_k`."""
        return {
            f"{name}_{index}": weight
            for index, kernel in enumerate(self.kernels)
            for name, weight in kernel.weights(num_heads, generator).items()
        }

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        total = sum(kernel.weight for kernel in self.kernels)
        # logsumexp: the mean of kernels underflows fp32 at d = 206 for the steepest of 8 heads, and its gradient is NaN
        return torch.logsumexp(
            torch.stack(
                [
                    math.log(kernel.weight / total) - kernel.decay(distance, **_own(weights, index))
                    for index, kernel in enumerate(self.kernels)
                ]
            ),
            dim=0,
        )


def _own(weights: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """The weights of kernel `index`, under the names that the kernel gave them."""
    suffix = f"_{index}"
    return {name.removesuffix(suffix): weight for name, weight in weights.items() if name.endswith(suffix)}
