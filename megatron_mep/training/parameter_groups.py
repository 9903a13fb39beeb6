"""Which weights the optimizer treats alike."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import ProcessGroup

from megatron_mep.parallel.tensor import is_encoding_weight
from megatron_mep.training.config import OptimizerConfig


def parameter_groups(
    parameters: Iterable[nn.Parameter], optimizer: OptimizerConfig, stages: ProcessGroup | None = None
) -> list[dict[str, Any]]:
    """Groups named `matrices`, `vectors` (norms and biases) and `encoding`; the last two without weight decay.

    Empty groups are left out: ZeRO partitions each group by itself and cannot partition nothing. Where another of the
    pipeline stages has a member, a zero that no gradient reaches stands in: DeepSpeed adds up the norm over the stages
    group by group, and stages with fewer groups than others would wait for ever, or add up what does not belong
    together. Collective over the stages where there are several.
    """
    named: dict[str, list[nn.Parameter]] = {"matrices": [], "vectors": [], "encoding": []}
    for parameter in parameters:
        if parameter.requires_grad:
            named[_group_of(parameter)].append(parameter)
    if stages is not None and stages.size() > 1:
        everyone: list[list[str]] = [[]] * stages.size()
        distributed.all_gather_object(everyone, [group for group, members in named.items() if members], stages)
        for group in {group for there in everyone for group in there}:
            like = next(member for members in named.values() for member in members)
            named[group] = named[group] or [nn.Parameter(torch.zeros(1, device=like.device))]
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
