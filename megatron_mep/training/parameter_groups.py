"""Which weights the optimizer treats alike."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from megatron_mep.parallel.tensor import is_encoding_weight
from megatron_mep.training.config import OptimizerConfig


def parameter_groups(parameters: Iterable[nn.Parameter], optimizer: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups named `matrices`, `vectors` (norms and biases) and `encoding`; the last two without weight decay.

    Empty groups are left out: ZeRO partitions each group by itself and cannot partition nothing.
    """
    named: dict[str, list[nn.Parameter]] = {"matrices": [], "vectors": [], "encoding": []}
    for parameter in parameters:
        if parameter.requires_grad:
            named[_group_of(parameter)].append(parameter)
    highest = {
        "matrices": optimizer.learning_rate,
        "vectors": optimizer.learning_rate,
        "encoding": optimizer.encoding_learning_rate or optimizer.learning_rate,
    }
    return [
        {
            "name": group,
            "params": members,
            "lr": highest[group],
            "max_lr": highest[group],
            "wd_mult": 1.0 if group == "matrices" else 0.0,
        }
        for group, members in named.items()
        if members
    ]


def _group_of(parameter: nn.Parameter) -> str:
    if is_encoding_weight(parameter):
        return "encoding"
    return "matrices" if parameter.dim() > 1 else "vectors"
