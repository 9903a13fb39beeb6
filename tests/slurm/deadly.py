"""An encoding for tests of crashes: while a file asks for it, a rank ends in the midst of a forward pass."""

import os
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, distributed

from megatron_mep.encodings.base import DistanceBias, Weight, per_head
from megatron_mep.encodings.slopes import alibi_slopes

ORDERS = "DEADLY_ORDERS"
"""The variable that names the folder in which a file `rank_N` asks rank N to end; it holds the exit code."""


class Deadly(DistanceBias):
    """ALiBi with slopes that are learned."""

    source: ClassVar[str] = "arXiv:2108.12409"
    formula: ClassVar[str] = "-m_h d"

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        return {"slope": Weight(alibi_slopes(num_heads))}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        if ORDERS in os.environ and distributed.is_initialized():
            order = Path(os.environ[ORDERS]) / f"rank_{distributed.get_rank()}"
            if order.exists():
                os._exit(int(order.read_text()))
        return -per_head(weights["slope"], distance) * distance
