"""BAM: a generalised Gaussian prior of the distance."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Sharable, Weight, per_head
from megatron_mep.encodings.slopes import alibi_slopes

STEEPEST = 5.0
"""The largest power of a distance that is taken: 131071^5 and (1e-5)^-5 are some 1e25, fp32 ends at 1e38."""


class Bam(Sharable, DistanceBias):
    """b_h(d) = -exp(s_h) (|d - mu_h| + 1e-5)^p_h with learned scale s and shape p, and mu = e^l - e^-l.

    Initially s_h is the logarithm of ALiBi's slope, p_h is 1 and l_h is 0: ALiBi, less a constant. A shape of 2 is a
    Gaussian; one below 0, which a head may learn, favours far keys. The location l is fixed as in the authors' code
    unless it is `learned_location`. That code has one prior for all layers (`shared_by_layers`), or one each. Ours is
    that a shape outside -5 .. 5 acts as the nearer end: powers of some distances leave fp32 not far from there.

    Source: "Bayesian Attention Mechanism: A Probabilistic Framework for Positional Encoding and Context Length
    Extrapolation", arXiv:2505.22842; the form is that of the authors' code, of which another version has
    -(|s d + l| + 1e-5)^p with a scale s that is not trained.
    """

    name: Literal["bam"] = "bam"
    source: ClassVar[str] = "arXiv:2505.22842 and its released code"
    formula: ClassVar[str] = "-exp(s_h) (|d - mu_h| + 1e-5)^p_h"

    shape: float = Field(1.0, gt=0, le=4)
    """The initial shape p of all heads."""
    learned_location: bool = False
    """Trains the location too; otherwise it stays 0."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """`scale [H]`, `shape [H]` and, where it is learned, `location [H]`."""
        scale = alibi_slopes(num_heads).log()
        weights = {"scale": Weight(scale), "shape": Weight(torch.full_like(scale, self.shape))}
        if self.learned_location:
            weights["location"] = Weight(torch.zeros_like(scale))
        return weights

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        scale, shape = (per_head(weights[name], distance) for name in ("scale", "shape"))
        shape = shape.clamp(-STEEPEST, STEEPEST)
        # mu = 2 sinh(l) without loss near l = 0
        centre = 2 * per_head(weights["location"], distance).sinh() if self.learned_location else 0
        return -scale.exp() * ((distance - centre).abs() + 1e-5) ** shape
