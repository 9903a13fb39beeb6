"""Reading a checkpoint, at any layout."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.validation import StrictHandling
from torch import Tensor, nn

from megatron_mep.checkpoint.files import verify
from megatron_mep.checkpoint.progress import Progress, read_progress
from megatron_mep.checkpoint.state import (
    OPTIMIZER,
    Sharded,
    moment,
    restore_generators,
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
    loaded = _load({"model": template_of(model)}, folder)
    model.load_state_dict(loaded["model"], strict=False)


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
    state: dict[str, Any] = {
        "model": weights(template, _empty),
        **{name: moment(template, name, _empty) for name in MOMENTS},
    }
    if same_layout:
        state["generators"] = sharded_generators(groups)
    loaded = _load(state, folder)
    for name, parameter in model.named_parameters():
        restore_weight(parameter, loaded["model"].pop(name), engine)
        for kind in MOMENTS:
            restore_moment(parameter, kind, loaded[kind].pop(name), engine)
    model.load_state_dict(loaded["model"], strict=False)
    restore_step(engine, progress.step)
    if same_layout:
        restore_generators(loaded["generators"])
    return progress


def _empty(parameter: nn.Parameter) -> Tensor:
    return torch.empty(_shape(parameter), dtype=torch.float32, device=parameter.device)


def _shape(parameter: nn.Parameter) -> torch.Size:
    """The whole shape of a weight, also where ZeRO keeps only a part of it here."""
    return getattr(parameter, "ds_shape", parameter.shape)


def _load(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    try:
        _refuse_weights_that_nothing_reads(state["model"], folder)
        return dist_checkpointing.load(state, str(folder), strict=StrictHandling.RAISE_UNEXPECTED)
    except (CheckpointingException, KeyError, ValueError, RuntimeError) as error:
        raise _unfit(folder, " ".join(str(error).split())) from error


def _refuse_weights_that_nothing_reads(model: Sharded, folder: Path) -> None:
    """Megatron-core would pass over them: biases, say, that the run file has been made to leave out."""
    stored = dist_checkpointing.load_tensors_metadata(str(folder))
    unread = {name for name in stored if not name.startswith(OPTIMIZER)} - {entry.key for entry in model.values()}
    if unread:
        raise _unfit(folder, f"it has no {', '.join(sorted(unread))}")


def _unfit(folder: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        Mistake(str(folder), None, f"does not fit the model ({reason})", "give the model the options of its run.yaml")
    )


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
