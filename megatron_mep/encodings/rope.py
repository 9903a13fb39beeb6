"""Rotary position embedding."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Rotation


class Rope(Rotation):
    """Pair m of a head's D dimensions turns by the angle position * base^(-2 m / D).

    Only the first `fraction` of the pairs turns, rounded to whole pairs, and D is then the number of dimensions that
    turn. The frequencies are those of GPT-NeoX's `rotary_pct`; the pairs span the whole head (m and m + half of it),
    whereas that code pairs within its first D dimensions: the same model with the dimensions in another order.

    Source: "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864.
    """

    name: Literal["rope"] = "rope"
    source: ClassVar[str] = "arXiv:2104.09864"
    formula: ClassVar[str] = "turn pair m by i base^(-2m/D)"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Which part of a head's dimensions turns."""

    def turning_pairs(self, head_size: int) -> int:
        """How many pairs of a head turn."""
        return round(head_size // 2 * self.fraction)

    def angles(self, position: Tensor, head_size: int) -> Tensor:
        """The angles `[*position.shape, head_size // 2]` in radians; pairs that do not turn have angle 0."""
        pairs = head_size // 2
        turning = self.turning_pairs(head_size)
        exponent = torch.arange(turning, dtype=torch.float64, device=position.device) / max(turning, 1)
        frequency = torch.zeros(pairs, dtype=torch.float64, device=position.device)
        frequency[:turning] = self.base**-exponent
        # fp64 until the product: at position 131071 an fp32 product is off by 2^-8 of a radian
        angle = position.double().unsqueeze(-1) * frequency
        return angle if position.dtype == torch.float64 else torch.remainder(angle, 2 * torch.pi).float()
