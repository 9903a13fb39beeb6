"""KERPLE's kernels of the distance as biases, and its kernel that scales scores besides."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, ScoreMix, Sharable, Weight
from megatron_mep.encodings.kernels import Kernel, Logarithmic, Power, PowerLogarithmic


class KerpleBias(Sharable, DistanceBias):
    """b_h(d) = log kappa_h(d) of one kernel, whose weights each layer learns unless they are shared.

    The paper divides the bias by sqrt(D) together with the scores; it is added to the scaled scores here, as in the
    paper's code, which also shares the weights over layers.
    """

    form: ClassVar[Kernel]
    """The kernel kappa_h."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        """Those of the kernel, each `[H]`."""
        return self.form.weights(num_heads, generator)

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        return -self.form.decay(distance, **weights)


class KerpleLog(KerpleBias):
    """b_h(d) = -r1_h log(1 + r2_h d) with learned r1, r2 > 0, initially r1 = 2 U(0,1) and r2 = U(0,1).

    Initial values as in the paper's code. Its bounds, clamped to 0.01 at least, are a softplus here; weights are per
    layer unless `shared_by_layers`, as that code has it.

    Source: "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", arXiv:2205.09921, eq. 1 and
    section 4.
    """

    name: Literal["kerple_log"] = "kerple_log"
    source: ClassVar[str] = "arXiv:2205.09921 and its released code"
    formula: ClassVar[str] = "-r1_h log(1 + r2_h d)"
    form: ClassVar[Kernel] = Logarithmic()


class KerplePower(KerpleBias):
    """b_h(d) = -r1_h d^r2_h with learned r1 > 0 and 0 < r2 < 2, initially r1 = U(0,1) and r2 = 2 U(0,1).

    Initial values as in the paper's code. Its bounds, clamped to r1 >= 0.01 and 0.01 <= r2 <= 2, are a softplus and a
    scaled sigmoid here; weights are per layer unless `shared_by_layers`, as that code has it. ALiBi is r2 = 1.

    Source: "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", arXiv:2205.09921, eq. 1 and
    section 4.
    """

    name: Literal["kerple_power"] = "kerple_power"
    source: ClassVar[str] = "arXiv:2205.09921 and its released code"
    formula: ClassVar[str] = "-r1_h d^r2_h"
    form: ClassVar[Kernel] = Power()


class Kerple3Log(KerpleBias):
    """b_h(d) = -r1_h log(1 + r2_h d^r3_h) with learned r1, r2 > 0 and 0 < r3 < 2; `kerple_log` is r3 = 1.

    Reconstructed, since the paper's code does not have it: the initial values r1 = 2 U(0,1), r2 = U(0,1) and
    r3 = 2 U(0,1), those of the logarithmic kernel and of the power kernel's exponent there.

    Source: "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", arXiv:2205.09921, the variant
    of three parameters.
    """

    name: Literal["kerple_3log"] = "kerple_3log"
    source: ClassVar[str] = "arXiv:2205.09921 (initial values reconstructed)"
    formula: ClassVar[str] = "-r1_h log(1 + r2_h d^r3_h)"
    form: ClassVar[Kernel] = PowerLogarithmic()


class KerpleWeighted(Sharable, ScoreMix):
    """The score S becomes S exp(-r3_h d^r4_h) - r1_h d^r2_h, with learned r1, r3 > 0 and 0 < r2, r4 < 2.

    Initial values as in the paper's code, r1 and r3 = U(0,1), r2 and r4 = 2 U(0,1); its bounds are those of
    `kerple_power`, which is the limit r3 = 0. S is the scaled score, as in that code.

    Source: "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", arXiv:2205.09921, the variant
    of bias and weight.
    """

    name: Literal["kerple_weighted"] = "kerple_weighted"
    source: ClassVar[str] = "arXiv:2205.09921 and its released code"
    formula: ClassVar[str] = "S exp(-r3_h d^r4_h) - r1_h d^r2_h"
    across_heads: ClassVar[bool] = False

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        """`r1 [H]` to `r4 [H]`, unbounded."""
        bias, factor = (Power().weights(num_heads, generator) for _ in range(2))
        return bias | {"r3": factor["r1"], "r4": factor["r2"]}

    def of_scores(
        self,
        scores: Tensor,
        query: Tensor,  # noqa: ARG002
        query_position: Tensor,
        key_position: Tensor,
        **weights: Tensor,
    ) -> Tensor:
        """The new scores `[B, H, Q, K]`."""
        distance = (query_position[:, None] - key_position).clamp(min=0)
        penalty = Power().decay(distance, r1=weights["r1"], r2=weights["r2"])
        decay = Power().decay(distance, r1=weights["r3"], r2=weights["r4"])
        return scores * torch.exp(-decay) - penalty
