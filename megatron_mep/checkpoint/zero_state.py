"""The optimizer's fp32 state of one weight, put together from and spread over ZeRO's partitions.

Every function that takes a weight is collective over the data-parallel ranks: all of them call it, weight by weight in
the same order.
"""

from typing import TYPE_CHECKING

import torch
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from torch import Tensor, nn

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running mean and mean square of the gradient."""


def master_of(parameter: nn.Parameter) -> Tensor:
    """The whole fp32 master weight; without ZeRO the weight itself."""
    whole = safe_get_full_fp32_param(parameter)
    return parameter.detach() if whole is None else whole.detach()


def moment_of(parameter: nn.Parameter, name: str, engine: "DeepSpeedEngine") -> Tensor:
    """One whole moment of a weight, fp32."""
    whole = safe_get_full_optimizer_state(parameter, name)
    return (engine.optimizer.state[parameter][name] if whole is None else whole).detach()


def restore_weight(parameter: nn.Parameter, master: Tensor, engine: "DeepSpeedEngine") -> None:
    """Sets the master weight and the working copy that the next forward pass reads."""
    safe_set_full_fp32_param(parameter, master)
    partitioned = engine.zero_optimization_partition_weights()
    with torch.no_grad(), GatheredParameters([parameter], modifier_rank=0, enabled=partitioned):
        parameter.data.copy_(master)


def restore_moment(parameter: nn.Parameter, name: str, value: Tensor, engine: "DeepSpeedEngine") -> None:
    """Sets one moment of a weight."""
    if engine.zero_optimization():
        safe_set_full_optimizer_state(parameter, value, name)
    else:
        state = engine.optimizer.state[parameter]
        state[name] = value.clone()


def restore_step(engine: "DeepSpeedEngine", step: int) -> None:
    """Sets Adam's count of steps, which corrects the bias of its moments."""
    for state in _basic_optimizer(engine).state.values():
        state["step"] = torch.tensor(float(step))


def _basic_optimizer(engine: "DeepSpeedEngine") -> torch.optim.Optimizer:
    """torch's optimizer, below ZeRO's where there is one."""
    return engine.optimizer.optimizer if engine.zero_optimization() else engine.optimizer
