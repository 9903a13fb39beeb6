"""What several ranks hold alike, compared bit by bit before one of them writes it for all."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from megatron_mep.checkpoint.zero_state import MOMENTS, master_of, moment_of
from megatron_mep.config.errors import CheckpointError, Mistake
from megatron_mep.model.copies import Copy, copies_of
from megatron_mep.parallel.groups import Groups

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from megatron_mep.model.interleaved import StageModel

Fingerprints = dict[str, bytes]
"""Hashes of tensors by their names."""
REMEDY = (
    "go on from the last checkpoint and look for what these ranks compute unlike each other; "
    "checkpoint.compare_replicas=false writes what one of them holds"
)


def refuse_differing_replicas(engine: "DeepSpeedEngine", groups: Groups) -> None:
    """A `CheckpointError` on every rank names the weights and moments that ranks should hold alike and do not.

    All that is not divided over tensor ranks is alike on them; working weights are alike on data and context ranks, but
    for ZeRO 3, which gives each a part. Masters and moments under ZeRO are each on one such rank alone. What several
    pipeline stages hold is alike on them. Collective.
    """
    replicas = _Replicas(groups)
    copied = not engine.zero_optimization()
    for name, parameter in _weights_of(engine.module):
        replicas.add(name, parameter, _working_part, over_data=not engine.zero_optimization_partition_weights())
        replicas.add(f"{name} (master)", parameter, master_of, over_data=copied)
        for kind in MOMENTS:
            replicas.add(f"{name} ({kind})", parameter, partial(moment_of, name=kind, engine=engine), over_data=copied)
    for copy in copies_of(engine.module):
        replicas.add_copy(copy, engine)
    replicas.compare()


def fingerprint(tensor: Tensor) -> bytes:
    """The sha256 of a tensor's shape, type and bits."""
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def _weights_of(model: "StageModel") -> Iterator[tuple[str, nn.Parameter]]:
    """The weights of this stage, by the names that they have where one rank holds all layers."""
    layers = "decoder.layers."
    for chunk in model.chunks:
        before = chunk.decoder.layers[0].layer_number - 1
        for name, parameter in chunk.named_parameters():
            number, _, rest = name.removeprefix(layers).partition(".")
            yield f"{layers}{before + int(number)}.{rest}" if name.startswith(layers) else name, parameter


def _working_part(parameter: nn.Parameter) -> Tensor:
    """What is here of a weight between two steps."""
    return getattr(parameter, "ds_tensor", parameter)


class _Replicas:
    """The fingerprints of this rank, by the group of ranks that must have the same."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._over_data: Fingerprints = {}
        self._over_tensor: Fingerprints = {}
        self._over_stages: list[tuple[ProcessGroup, Fingerprints]] = []

    def add(
        self, name: str, parameter: nn.Parameter, value_of: Callable[[nn.Parameter], Tensor], over_data: bool
    ) -> None:
        over_data = over_data and self._groups.weights_group.size() > 1
        over_tensor = self._groups.tensor_size > 1 and not getattr(parameter, "tensor_model_parallel", False)
        if over_data or over_tensor:
            found = fingerprint(value_of(parameter))
            self._over_data |= {name: found} if over_data else {}
            self._over_tensor |= {name: found} if over_tensor else {}

    def add_copy(self, copy: Copy, engine: "DeepSpeedEngine") -> None:
        moments = {f"{copy.name} ({kind})": moment_of(copy.parameter, kind, engine) for kind in MOMENTS}
        held = {copy.name: master_of(copy.parameter), **moments}
        self._over_stages.append((copy.group, {name: fingerprint(tensor) for name, tensor in held.items()}))

    def compare(self) -> None:
        mine = [
            *((name, "data and context") for name in _differing(self._over_data, self._groups.weights_group)),
            *((name, "tensor") for name in _differing(self._over_tensor, self._groups.tensor_group)),
            *((name, "pipeline") for group, found in self._over_stages for name in _differing(found, group)),
        ]
        everyone: list[list[tuple[str, str]]] = [[]] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        found = dict.fromkeys(pair for part in everyone for pair in part)
        if found:
            raise CheckpointError(
                Mistake(name, None, f"is not the same on all {axis} ranks: nothing was written", REMEDY)
                for name, axis in found
            )


def _differing(mine: Fingerprints, group: ProcessGroup) -> Iterator[str]:
    everyone: list[Fingerprints] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group)
    names = dict.fromkeys(name for part in everyone for name in part)
    return (name for name in names if len({part.get(name) for part in everyone}) > 1)
