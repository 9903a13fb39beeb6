"""The course of an encoding's learned weights over a run."""

import torch
from torch import distributed, nn

from megatron_mep.checkpoint.zero_state import master_of
from megatron_mep.parallel.groups import Groups
from megatron_mep.training.metrics import Metrics


def encoding_metrics(weights: dict[str, nn.Parameter], groups: Groups) -> Metrics:
    """Smallest, mean and largest value over the heads of each learned weight, as the optimizer holds it.

    Collective over all ranks: ZeRO's partitions, the tensor ranks' heads and the pipeline stages' layers are put
    together.
    """
    metrics: Metrics = {}
    for name, weight in weights.items():
        mine = master_of(weight)
        heads = [torch.empty_like(mine) for _ in range(groups.tensor_size)]
        distributed.all_gather(heads, mine.contiguous(), group=groups.tensor_group)
        values = torch.cat([part.flatten() for part in heads])
        metrics |= {
            f"{name}/min": float(values.min()),
            f"{name}/mean": float(values.mean()),
            f"{name}/max": float(values.max()),
        }
    everyone: list[Metrics] = [metrics] * groups.pipeline_size
    if groups.pipeline_size > 1:
        distributed.all_gather_object(everyone, metrics, groups.pipeline_group)
    return {name: value for stage in everyone for name, value in stage.items()}
