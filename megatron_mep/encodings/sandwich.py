"""Sandwich: the product of sinusoidal embeddings as a bias by distance."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Weight, per_head
from megatron_mep.encodings.rotary import angles_at


class Sandwich(DistanceBias):
    """b_h(d) = H / (8 h) sum_t (cos(d base^(-2 t / E)) - 1), with t = 1 .. E/2 and heads h = 1 .. H.

    The sum of cosines is the product of two sinusoidal embeddings of size E, and the 1 in it makes b_h(0) zero, which
    the softmax does not see. It falls as a logarithm does, but waves where slow cosines turn back. The range of t and
    the ratios H / (8 h) are those of two public codes; the paper's own range may begin at t = 0.

    Source: "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis", arXiv:2212.10356,
    section 5; reconstructed from OpenNLPLab's and NeMo's code.
    """

    name: Literal["sandwich"] = "sandwich"
    source: ClassVar[str] = "arXiv:2212.10356, section 5 (reconstructed from public code)"
    formula: ClassVar[str] = "H/(8h) sum_t (cos(d base^(-2t/E)) - 1)"

    size: int = Field(128, gt=0, multiple_of=2)
    """Dimensions of the sinusoidal embeddings, E; no size of the model."""
    base: float = Field(10000.0, gt=1)
    """The longest wave has 2 pi times this length."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """The constant ratios, `ratio [H]`."""
        ratios = [num_heads / (8 * head) for head in range(1, num_heads + 1)]
        return {"ratio": Weight(torch.tensor(ratios, dtype=torch.float32), learned=False)}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        num_waves = self.size // 2
        exponent = torch.arange(1, num_waves + 1, dtype=torch.float64) / num_waves
        frequency = torch.as_tensor(self.base, dtype=torch.float64) ** -exponent
        # cos(a) - 1 = -2 sin^2(a / 2), which keeps its digits near distance 0
        sine = torch.sin(angles_at(distance, frequency) / 2)
        return -2 * per_head(weights["ratio"], distance) * sine.square().sum(dim=-1)
