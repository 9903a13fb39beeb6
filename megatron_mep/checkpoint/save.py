"""Writing a checkpoint."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from torch import Tensor, nn

from megatron_mep.checkpoint.files import Checksums, begin, checksums, publish
from megatron_mep.checkpoint.progress import FILE, Progress
from megatron_mep.checkpoint.state import Sharded, ValueOf, moment, sharded_generators, weights
from megatron_mep.checkpoint.writer import write_in_this_process
from megatron_mep.checkpoint.zero_state import MOMENTS, master_of, moment_of
from megatron_mep.parallel.groups import Groups

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

RUN_FILE = "run.yaml"


def save_checkpoint(
    root: Path,
    engine: "DeepSpeedEngine",
    template: Sharded,
    progress: Progress,
    run_yaml: str,
    keep: int | None,
    groups: Groups,
) -> Path:
    """Writes weights, moments, generators, progress and the resolved run file; collective over all ranks.

    Args:
        root: The folder of the run's checkpoints.
        engine: Holds the weights and moments.
        template: Where each weight belongs, `template_of` the model before it came under ZeRO.
        progress: How far the run has come.
        run_yaml: The resolved run file.
        keep: How many of the newest checkpoints stay.
        groups: This rank's place.

    Returns:
        The checkpoint's folder, in place and whole. Until then nothing of an older checkpoint is touched.
    """
    state = {
        "model": weights(template, _kept(master_of, groups)),
        **{
            name: moment(template, name, _kept(partial(moment_of, name=name, engine=engine), groups))
            for name in MOMENTS
        },
        "generators": sharded_generators(groups),
    }
    write_in_this_process()
    beside = _told_by_rank_0(lambda: begin(root, progress.step))
    dist_checkpointing.save(state, str(beside))
    known = _from_all_ranks(checksums(beside.glob(f"__{groups.rank}_*")))
    return _told_by_rank_0(lambda: _complete(root, beside, progress, run_yaml, keep, known))


def _kept(value_of: ValueOf, groups: Groups) -> ValueOf:
    """Moves values to the memory of the host, on the one data-parallel rank that writes them; others keep the shapes.

    All together they are three copies of the model, more than a device may have room for.
    """

    def value(parameter: nn.Parameter) -> Tensor:
        whole = value_of(parameter)
        return whole.cpu() if groups.data_rank == 0 else torch.zeros((), dtype=whole.dtype).expand(whole.shape)

    return value


def _complete(root: Path, beside: Path, progress: Progress, run_yaml: str, keep: int | None, known: Checksums) -> Path:
    """Adds what a person reads, and puts the checkpoint in place."""
    (beside / RUN_FILE).write_text(run_yaml, encoding="utf-8")
    (beside / FILE).write_text(progress.json(), encoding="utf-8")
    return publish(root, progress.step, keep, known)


def _from_all_ranks(mine: Checksums) -> Checksums:
    """The checksums that all ranks took, each of its own files: to read them all would keep one rank long."""
    everyone: list[Checksums] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {name: checksum for part in everyone for name, checksum in part.items()}


def _told_by_rank_0(act: Callable[[], Path]) -> Path:
    """A path that rank 0 alone finds out, on every rank."""
    told = [act() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    path = told[0]
    assert path is not None, "rank 0 told no path"
    return path
