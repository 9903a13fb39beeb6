"""Reading a checkpoint, at any layout."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.validation import StrictHandling
from torch import Tensor, nn

from megatron_mep.checkpoint.contents import tensors_in
from megatron_mep.checkpoint.files import verify
from megatron_mep.checkpoint.manifest import Fault, faults
from megatron_mep.checkpoint.progress import Progress, read_progress
from megatron_mep.checkpoint.state import (
    Shapes,
    Sharded,
    moment,
    restore_generators,
    shapes_of,
    sharded_generators,
    template_of,
    weights,
)
from megatron_mep.checkpoint.zero_state import MOMENTS, restore_moment, restore_step, restore_weight
from megatron_mep.config.errors import CheckpointError, Mistake
from megatron_mep.parallel.groups import Groups

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


def load_weights(folder: Path, model: nn.Module) -> None:
    """The checkpoint's weights into a model that is not under ZeRO, each cast to the type that it has there."""
    verify(folder, _faults_found_by_all)
    template = template_of(model)
    _refuse_another_model(shapes_of(template), _shapes_in(folder), folder)
    model.load_state_dict(_read({"model": template}, folder)["model"], strict=False)


def load_initial_weights(folder: Path, engine: "DeepSpeedEngine", template: Sharded, groups: Groups) -> None:
    """What the checkpoint's run has learned into a fresh engine, as fp32 masters, and nothing else of it.

    Constants stay as the model's own encoding states them. `template` as for `load_training_state`.
    """
    verify(folder, _faults_found_by_all)
    learned = {name: entry for name, entry in template.items() if isinstance(entry.data, nn.Parameter)}
    state = {"model": weights(learned, _empty)}
    there = {tensor.name: tensor.shape for tensor in tensors_in(folder) if tensor.learned}
    _refuse_another_model(shapes_of(state["model"]), there, folder)
    _restore_weights(_read(state, folder)["model"], engine, groups)


def load_training_state(folder: Path, engine: "DeepSpeedEngine", template: Sharded, groups: Groups) -> Progress:
    """Everything of the checkpoint into a fresh engine, so that training goes on as if it had not stopped.

    `template` says where each weight belongs: `template_of` the model before it came under ZeRO.

    The states of random generators are taken up at the layout and on the kind of device they were written at; at
    another there is nothing that they would continue, and the generators stay as the run's seed left them.
    """
    verify(folder, _faults_found_by_all)
    progress = read_progress(folder)
    written_at = progress.tensor_size, progress.context_size, progress.pipeline_size, progress.data_size
    same_layout = written_at == (
        groups.tensor_size,
        groups.context_size,
        groups.pipeline_size,
        groups.data_size,
    )
    model = engine.module
    state: dict[str, Any] = {"model": weights(template, _empty)}
    _refuse_another_model(shapes_of(state["model"]), _shapes_in(folder), folder)
    if same_layout:
        state["generators"] = sharded_generators(groups)
    loaded = _read(state, folder)
    _restore_weights(loaded["model"], engine, groups)
    model.load_state_dict(loaded["model"], strict=False)
    for kind in MOMENTS:
        # one kind after the other: each is a copy of the whole model on every rank
        values = _read({kind: moment(template, kind, _empty)}, folder)[kind]
        for name, parameter in model.named_parameters():
            restore_moment(parameter, kind, values.pop(name).to(groups.device), engine)
    restore_step(engine, progress.updates)
    if same_layout:
        restore_generators(loaded["generators"])
    return progress


def _restore_weights(masters: Sharded, engine: "DeepSpeedEngine", groups: Groups) -> None:
    """Sets every weight and takes it out of `masters`."""
    for name, parameter in engine.module.named_parameters():
        restore_weight(parameter, masters.pop(name).to(groups.device), engine)


def _empty(parameter: nn.Parameter) -> Tensor:
    """Room in host memory for a whole weight, also where ZeRO keeps only a part of it here."""
    return torch.empty(getattr(parameter, "ds_shape", parameter.shape), dtype=torch.float32)


def _read(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    return dist_checkpointing.load(state, str(folder), strict=StrictHandling.RAISE_UNEXPECTED)


def _shapes_in(folder: Path) -> Shapes:
    return {tensor.name: tensor.shape for tensor in tensors_in(folder)}


def _refuse_another_model(own: Shapes, there: Shapes, folder: Path) -> None:
    """Megatron-core tells other shapes by a traceback of every rank, and passes over weights that nothing asks for.

    Collective: each pipeline stage has a part of the model.
    """
    everyone: list[Shapes] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    here = {name: shape for part in everyone for name, shape in part.items()}
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if differing:
        first = differing[0]
        more = f", and {len(differing) - 1} more weights differ" if differing[1:] else ""
        rule = f"holds another model: {first} is {_told(there, first)} there and {_told(here, first)} here{more}"
        raise CheckpointError(Mistake(str(folder), None, rule, "give the model the options of its run.yaml"))


def _told(shapes: Shapes, name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "absent"


def _faults_found_by_all(folder: Path) -> list[Fault]:
    """Looks at a part of the files on each rank; what is wrong is known on every rank."""
    everyone: list[list[Fault]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, faults(folder, dist.get_rank(), dist.get_world_size()))
    return list(dict.fromkeys(fault for part in everyone for fault in part))
