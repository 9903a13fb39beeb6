"""Rotary position embedding."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.rotary import Rotary, geometric


class Rope(Rotary):
    """Pair m of a head's D dimensions turns by the angle position * base^(-2 m / D).

    Only the first `fraction` of the pairs turns, rounded to whole pairs, and D is then the number of dimensions that
    turn. The frequencies are those of GPT-NeoX's `rotary_pct`; the pairs span the whole head (m and m + half of it),
    whereas that code pairs within its first D dimensions: the same model with the dimensions in another order.

    Source: "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864.
    """

    name: Literal["rope"] = "rope"
    source: ClassVar[str] = "arXiv:2104.09864"
    formula: ClassVar[str] = "turn pair m by i base^(-2m/D)"

    fraction: float = Field(1.0, gt=0, le=1)
    """Which part of a head's dimensions turns."""

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """The base's, and a fraction too small for a single pair."""
        pairs = sizes.head_size // 2
        if not pairs or self.turning_pairs(sizes.head_size):
            return super().mistakes(sizes)
        rule = f"must turn at least one of the {pairs} pairs of a head's dimensions"
        remedy = f"set it to {1 / pairs:.2g} or more, or model.encoding.name to nope"
        return [*super().mistakes(sizes), Mistake("fraction", self.fraction, rule, remedy)]

    def turning_pairs(self, head_size: int) -> int:
        """How many pairs of a head turn."""
        return round(head_size // 2 * self.fraction)

    def series_size(self, head_size: int) -> int:
        """The dimensions that turn, as in GPT-NeoX."""
        return 2 * self.turning_pairs(head_size)

    def frequencies(self, head_size: int) -> Tensor:
        """Radians by which each pair turns from one position to the next, `[head_size // 2]` in fp64."""
        turning = self.turning_pairs(head_size)
        return functional.pad(geometric(self.base, 2 * turning), (0, head_size // 2 - turning))
