"""A run's state in Megatron-core's sharded form: one key for each tensor of the whole model, whoever holds the pieces.

Weights are stored as their fp32 masters; the working copies in a lower precision follow from them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from torch import Tensor, nn

from megatron_mep.parallel.groups import Groups

Sharded = dict[str, Any]


def sharded_weights(model: nn.Module, value_of: Callable[[nn.Parameter], Tensor] | None = None) -> Sharded:
    """Every weight and constant of the model by name, each as a piece of a global tensor.

    `value_of` gives the tensor stored for (or loaded into the place of) a parameter; the parameter itself if absent.
    """
    entries = model.sharded_state_dict()  # type: ignore[operator]
    return {name: _with_value(entry, value_of) for name, entry in entries.items() if _is_stored(entry)}


def sharded_moment(model: nn.Module, name: str, value_of: Callable[[nn.Parameter], Tensor]) -> Sharded:
    """One moment of every trained weight, sharded like the weight."""
    return {
        key: make_sharded_optimizer_tensor(entry, value_of(entry.data), prefix=f"optimizer.{name}")
        for key, entry in model.sharded_state_dict().items()  # type: ignore[operator]
        if _is_stored(entry) and isinstance(entry.data, nn.Parameter)
    }


def sharded_generators(groups: Groups) -> ShardedObject:
    """The states of this rank's random generators, each rank its own piece."""
    return ShardedObject(
        key="random_generators",
        data=generator_states(),
        global_shape=(groups.tensor_size, groups.data_size),
        global_offset=(groups.tensor_rank, groups.data_rank),
    )


def generator_states() -> dict[str, Any]:
    """What dropout would draw next on this rank."""
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "tensor_parallel": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }


def restore_generators(states: dict[str, Any]) -> None:
    """Takes up drawing where `generator_states` was called."""
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    tensor_parallel.get_cuda_rng_tracker().set_states(states["tensor_parallel"])


def _is_stored(entry: object) -> bool:
    """Leaves out TransformerEngine's extra states, which our layers do not have."""
    return isinstance(entry, ShardedTensor | ShardedTensorFactory)


def _with_value(entry: Any, value_of: Callable[[nn.Parameter], Tensor] | None) -> Any:
    if value_of is None or not isinstance(entry.data, nn.Parameter):
        return entry
    value = value_of(entry.data)
    return replace(entry, data=value, **({"dtype": value.dtype} if isinstance(entry, ShardedTensor) else {}))
