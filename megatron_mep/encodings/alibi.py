"""Attention with linear biases."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Weight, per_head
from megatron_mep.encodings.slopes import Order, alibi_slopes


class Alibi(DistanceBias):
    """b_h(d) = -m_h d, with the slopes m_h of `alibi_slopes`.

    The published code adds m_h j instead, which differs by a constant of the row and so gives the same softmax; the
    form by distance keeps its precision at any length. Flatter, stated or learned slopes are `mep` with one kernel,
    `kernels: [{kernel: exponential, width: 2}]`.

    Source: "Train Short, Test Long", arXiv:2108.12409, section 3.
    """

    name: Literal["alibi"] = "alibi"
    source: ClassVar[str] = "arXiv:2108.12409, section 3"
    formula: ClassVar[str] = "-m_h d"

    order: Order = "published"
    """Which head has which slope; `balanced` gives tensor ranks like work where windows skip keys."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """The constant slopes, `slope [H]`."""
        return {"slope": Weight(alibi_slopes(num_heads, self.order), learned=False)}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        return -per_head(weights["slope"], distance) * distance
