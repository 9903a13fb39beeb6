"""The types that a run file names."""

from typing import Literal

import torch


def dtype_of(precision: Literal["fp32", "bf16"]) -> torch.dtype:
    """The type of weights and activations under `training.precision`."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
