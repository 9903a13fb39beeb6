"""A run's state in Megatron-core's sharded form: one key for each tensor of the whole model, whoever holds the pieces.

Weights are stored as their fp32 masters; the working copies in a lower precision follow from them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from torch import Tensor, nn

from megatron_mep.checkpoint.zero_state import MOMENTS
from megatron_mep.parallel.groups import Groups

OPTIMIZER = "optimizer."
"""What the keys of moments begin with; those of weights do not."""
MOMENT_KEYS = tuple(f"{OPTIMIZER}{name}" for name in MOMENTS)
"""What the keys of the moments of a weight begin with, each; a dot and the weight's key follow."""
Sharded = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
"""Shapes of tensors of the whole model, by their keys."""
ValueOf = Callable[[nn.Parameter], Tensor]
"""The tensor of a parameter's whole shape on this rank that is stored, or loaded into."""


def template_of(model: nn.Module) -> Sharded:
    """Where each weight and constant of the model belongs, by name; to be taken before ZeRO parts the weights.

    An entry's data is the `nn.Parameter` itself, or a constant.
    """
    entries = model.sharded_state_dict()  # type: ignore[operator]
    # what is left out are TransformerEngine's extra states, which our layers do not have
    return {name: entry for name, entry in entries.items() if isinstance(entry, ShardedTensor | ShardedTensorFactory)}


def weights(template: Sharded, value_of: ValueOf) -> Sharded:
    """The template with `value_of` each parameter in its place, to store or to load into; constants as they are."""
    return {name: _with_value(entry, value_of) for name, entry in template.items()}


def shapes_of(entries: Sharded) -> Shapes:
    """The shapes that weights and constants have in the whole model."""
    parts = [
        part
        for entry in entries.values()
        for part in (nested_values(entry.build()) if isinstance(entry, ShardedTensorFactory) else [entry])
    ]
    return {part.key: tuple(part.global_shape) for part in parts}


def moment(template: Sharded, name: str, value_of: ValueOf) -> Sharded:
    """One moment of every parameter, sharded like the parameter."""
    return {
        key: make_sharded_optimizer_tensor(entry, value_of(entry.data), prefix=f"{OPTIMIZER}{name}")
        for key, entry in template.items()
        if isinstance(entry.data, nn.Parameter)
    }


def sharded_generators(groups: Groups) -> ShardedObject:
    """The states of this rank's random generators, each rank its own piece."""
    return ShardedObject(
        key="random_generators",
        data=generator_states(),
        global_shape=(groups.tensor_size, groups.pipeline_size * groups.data_size * groups.context_size),
        global_offset=(groups.tensor_rank, groups.stream),
    )


def generator_states() -> dict[str, Any]:
    """What dropout would draw next on this rank."""
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "tensor_parallel": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }


def restore_generators(states: dict[str, Any]) -> None:
    """Takes up drawing where `generator_states` was called, on the same kind of device; no other can go on from it."""
    if (states["cuda"] is not None) != torch.cuda.is_available():
        return
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])
    tensor_parallel.get_cuda_rng_tracker().set_states(states["tensor_parallel"])


def _with_value(entry: Any, value_of: ValueOf) -> Any:
    if not isinstance(entry.data, nn.Parameter):
        # Megatron-core gives the data of what it is handed another shape
        return replace(entry)
    value = value_of(entry.data)
    return replace(entry, data=value, **({"dtype": value.dtype} if isinstance(entry, ShardedTensor) else {}))
