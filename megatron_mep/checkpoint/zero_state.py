"""The optimizer's fp32 state of one weight, put together from and spread over ZeRO's partitions.

Every function that takes a weight is collective over the data-parallel ranks: all of them call it, weight by weight in
the same order.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor, distributed, nn
from torch.nn import functional

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running mean and mean square of the gradient."""


def create_moments(engine: "DeepSpeedEngine") -> None:
    """Gives every partition its moments, at zero, ahead of the first step; not collective.

    AdamW creates them in its first step. ZeRO 1 and 2 look for them as soon as the first parameter group has taken
    its step, and never find those of the other groups; and a checkpoint is loaded before any step.
    """
    states = _basic_optimizer(engine).state
    for partition in _partitions(engine):
        if not states[partition]:
            states[partition]["step"] = torch.tensor(0.0)
            states[partition].update({name: torch.zeros_like(partition) for name in MOMENTS})
    if engine.zero_optimization() and not engine.zero_optimization_partition_weights():
        engine.optimizer._lazy_init_hp_params_optimizer_state()


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
    partitioned = engine.zero_optimization_partition_weights()
    if partitioned:
        safe_set_local_fp32_param(parameter, _own_part(parameter, master))
    else:
        safe_set_full_fp32_param(parameter, master)
    with torch.no_grad(), GatheredParameters([parameter], modifier_rank=0, enabled=partitioned):
        parameter.data.copy_(master)


def restore_moment(parameter: nn.Parameter, name: str, value: Tensor, engine: "DeepSpeedEngine") -> None:
    """Sets one moment of a weight."""
    if engine.zero_optimization_partition_weights():
        safe_set_local_optimizer_state(parameter, _own_part(parameter, value), name)
    elif engine.zero_optimization():
        safe_set_full_optimizer_state(parameter, value, name)
    else:
        engine.optimizer.state[parameter][name] = value


def restore_step(engine: "DeepSpeedEngine", step: int) -> None:
    """Sets Adam's count of steps, which corrects the bias of its moments."""
    for state in _basic_optimizer(engine).state.values():
        state["step"] = torch.tensor(float(step))


def _own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """What ZeRO 3 keeps of a weight on this rank.

    The parts are of one size, the last one padded; DeepSpeed itself fails to set a whole weight that needs padding.
    """
    size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
    group = parameter.ds_process_group  # type: ignore[attr-defined]
    padding = size * distributed.get_world_size(group) - whole.numel()
    return functional.pad(whole.flatten(), (0, padding)).narrow(0, size * distributed.get_rank(group), size)


def _basic_optimizer(engine: "DeepSpeedEngine") -> torch.optim.Optimizer:
    """torch's optimizer, below ZeRO's where there is one."""
    return engine.optimizer.optimizer if engine.zero_optimization() else engine.optimizer


def _partitions(engine: "DeepSpeedEngine") -> Iterator[Tensor]:
    """The tensors that torch's optimizer updates on this rank."""
    if engine.zero_optimization_partition_weights():
        yield from engine.optimizer.fp32_partitioned_groups_flat
        return
    for group in _basic_optimizer(engine).param_groups:
        yield from group["params"]
