"""An encoding for tests of disturbances: files say how slow a forward pass is, and in which rank it does not return."""

import os
import time
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, distributed

from megatron_mep.encodings.base import DistanceBias, Weight, per_head
from megatron_mep.encodings.slopes import alibi_slopes

ORDERS = "DEADLY_ORDERS"
"""The variable that names the folder of orders: a file `rank_N` ends rank N by the exit code that it holds."""
PACE = "pace"
"""The order that holds how many seconds a layer takes more than it must."""


class Deadly(DistanceBias):
    """ALiBi with slopes that are learned."""

    source: ClassVar[str] = "arXiv:2108.12409"
    formula: ClassVar[str] = "-m_h d"

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        return {"slope": Weight(alibi_slopes(num_heads))}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        if ORDERS in os.environ and distributed.is_initialized():
            _obey(Path(os.environ[ORDERS]))
        return -per_head(weights["slope"], distance) * distance


def _obey(orders: Path) -> None:
    pace, end = orders / PACE, orders / f"rank_{distributed.get_rank()}"
    if pace.exists():
        time.sleep(float(pace.read_text()))
    if end.exists():
        os._exit(int(end.read_text()))
