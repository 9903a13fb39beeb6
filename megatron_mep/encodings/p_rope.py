"""Rotary position embedding without its lowest frequencies."""

import math
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.rotary import Rotary, geometric


class PRope(Rotary):
    """Pair m of the first `fraction` turns by the angle position * base^(-2 m / D); the slower ones do not turn.

    D is the size of the whole head, so that the frequencies which are left are RoPE's highest: a fraction of 1 is
    `rope`, one of 0 is `nope`. (`rope` with a fraction spreads all of its frequencies over fewer pairs instead.) As in
    the paper's code, a part of a pair does not turn; its best fraction, three quarters, is the default.

    Source: "Round and Round We Go! What makes Rotary Positional Encodings useful?", arXiv:2410.06205.
    """

    name: Literal["p_rope"] = "p_rope"
    source: ClassVar[str] = "arXiv:2410.06205"
    formula: ClassVar[str] = "turn pair m < p D/2 by i base^(-2m/D)"

    fraction: float = Field(0.75, ge=0, le=1)
    """Which part of the pairs turns, the fastest first: p."""

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """The base's, and a fraction above zero that is too small for a single pair."""
        pairs = sizes.head_size // 2
        if not pairs or not self.fraction or self.turning_pairs(sizes.head_size):
            return super().mistakes(sizes)
        rule = f"must turn at least one of the {pairs} pairs of a head's dimensions, or be 0"
        remedy = f"set it to {math.ceil(1000 / pairs) / 1000:g} or more"
        return [*super().mistakes(sizes), Mistake("fraction", self.fraction, rule, remedy)]

    def turning_pairs(self, head_size: int) -> int:
        """How many pairs of a head turn."""
        # rounded first, for 0.29 of 100 is 28.999999999999996 in binary
        return math.floor(round(head_size // 2 * self.fraction, 9))

    def frequencies(self, head_size: int) -> Tensor:
        """Radians by which each pair turns from one position to the next, `[head_size // 2]` in fp64."""
        turning = self.turning_pairs(head_size)
        return functional.pad(geometric(self.base, head_size)[:turning], (0, head_size // 2 - turning))
