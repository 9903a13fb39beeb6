"""Reading a checkpoint, at any layout."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.validation import StrictHandling
from torch import Tensor, nn

from megatron_mep.checkpoint.files import verify
from megatron_mep.checkpoint.progress import Progress, read_progress
from megatron_mep.checkpoint.state import (
    OPTIMIZER,
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
    _verified_by_all(folder)
    template = template_of(model)
    _refuse_another_model(shapes_of(template), folder)
    model.load_state_dict(_read({"model": template}, folder)["model"], strict=False)


def load_training_state(folder: Path, engine: "DeepSpeedEngine", template: Sharded, groups: Groups) -> Progress:
    """Everything of the checkpoint into a fresh engine, so that training goes on as if it had not stopped.

    `template` says where each weight belongs: `template_of` the model before it came under ZeRO.

    The states of random generators are taken up at the layout they were written at; at another there is nothing that
    they would continue, and the generators stay as the run's seed left them.
    """
    _verified_by_all(folder)
    progress = read_progress(folder)
    same_layout = (progress.tensor_size, progress.data_size) == (groups.tensor_size, groups.data_size)
    model = engine.module
    state: dict[str, Any] = {"model": weights(template, _empty)}
    _refuse_another_model(shapes_of(state["model"]), folder)
    if same_layout:
        state["generators"] = sharded_generators(groups)
    loaded = _read(state, folder)
    for name, parameter in model.named_parameters():
        restore_weight(parameter, loaded["model"].pop(name).to(groups.device), engine)
    model.load_state_dict(loaded["model"], strict=False)
    for kind in MOMENTS:
        # one kind after the other: each is a copy of the whole model on every rank
        values = _read({kind: moment(template, kind, _empty)}, folder)[kind]
        for name, parameter in model.named_parameters():
            restore_moment(parameter, kind, values.pop(name).to(groups.device), engine)
    restore_step(engine, progress.step)
    if same_layout:
        restore_generators(loaded["generators"])
    return progress


def _empty(parameter: nn.Parameter) -> Tensor:
    """Room in host memory for a whole weight, also where ZeRO keeps only a part of it here."""
    return torch.empty(getattr(parameter, "ds_shape", parameter.shape), dtype=torch.float32)


def _read(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    return dist_checkpointing.load(state, str(folder), strict=StrictHandling.RAISE_UNEXPECTED)


def _refuse_another_model(here: Shapes, folder: Path) -> None:
    """Megatron-core tells other shapes by a traceback of every rank, and passes over weights that nothing asks for."""
    stored = dist_checkpointing.load_tensors_metadata(str(folder))
    there = {name: tuple(entry.global_shape) for name, entry in stored.items() if not name.startswith(OPTIMIZER)}
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if differing:
        first = differing[0]
        more = f", and {len(differing) - 1} more weights differ" if differing[1:] else ""
        rule = f"holds another model: {first} is {_told(there, first)} there and {_told(here, first)} here{more}"
        raise CheckpointError(Mistake(str(folder), None, rule, "give the model the options of its run.yaml"))


def _told(shapes: Shapes, name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "absent"


def _verified_by_all(folder: Path) -> None:
    """Checks a part of the files on each rank; what is wrong is raised on every rank."""
    everyone: list[tuple[Mistake, ...]] = [()] * dist.get_world_size()
    dist.all_gather_object(everyone, _mistakes_of(partial(verify, folder, dist.get_rank(), dist.get_world_size())))
    mistakes = dict.fromkeys(mistake for part in everyone for mistake in part)
    if mistakes:
        raise CheckpointError(mistakes)


def _mistakes_of(check: Callable[[], None]) -> tuple[Mistake, ...]:
    try:
        check()
    except CheckpointError as error:
        return error.mistakes
    return ()
