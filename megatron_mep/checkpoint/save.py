"""Writing a checkpoint."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from torch import Tensor, nn

from megatron_mep.checkpoint import written_by
from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.config import CheckpointConfig
from megatron_mep.checkpoint.files import RUN_FILE, begin, publish
from megatron_mep.checkpoint.finite import refuse_non_finite
from megatron_mep.checkpoint.manifest import Checksums, checksums
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.progress import FILE, Progress
from megatron_mep.checkpoint.replicas import refuse_differing_replicas
from megatron_mep.checkpoint.state import Sharded, ValueOf, moment, sharded_generators, weights
from megatron_mep.checkpoint.writer import write_in_this_process
from megatron_mep.checkpoint.zero_state import MOMENTS, master_of, moment_of
from megatron_mep.parallel.groups import Groups

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


def save_checkpoint(
    attempt: Attempt,
    engine: "DeepSpeedEngine",
    template: Sharded,
    progress: Progress,
    run_yaml: str,
    config: CheckpointConfig,
    groups: Groups,
) -> Path:
    """Writes weights, moments, generators, progress and the resolved run file; collective over all ranks.

    Args:
        attempt: Who writes, and where.
        engine: Holds the weights and moments.
        template: Where each weight belongs, `template_of` the model before it came under ZeRO.
        progress: How far the run has come.
        run_yaml: The resolved run file.
        config: How many of the newest checkpoints stay, and whether replicas are compared.
        groups: This rank's place.

    Returns:
        The checkpoint's folder, in place and whole. Until then nothing of an older checkpoint is touched.
    """
    if config.compare_replicas:
        refuse_differing_replicas(engine, groups)
    state = {
        "model": weights(template, _kept(master_of, groups)),
        **{
            name: moment(template, name, _kept(partial(moment_of, name=name, engine=engine), groups))
            for name in MOMENTS
        },
        "generators": sharded_generators(groups),
    }
    refuse_non_finite(template, (state["model"], *(state[name] for name in MOMENTS)), attempt.root)
    write_in_this_process()
    beside = told_by_rank_0(lambda: begin(attempt, progress.step))
    with attempt.writing():
        dist_checkpointing.save(state, str(beside))
        mine = checksums(beside.glob(f"__{groups.rank}_*"))
    known = _from_all_ranks(mine)
    return told_by_rank_0(lambda: _complete(attempt, beside, progress, run_yaml, config.keep, known))


def _kept(value_of: ValueOf, groups: Groups) -> ValueOf:
    """Moves values to host memory, on the first of the ranks that hold them, which writes; others keep shapes.

    All together they are three copies of the model, more than a device may have room for.
    """

    def value(parameter: nn.Parameter) -> Tensor:
        whole = value_of(parameter)
        writes = groups.weights_group.rank() == 0
        return whole.cpu() if writes else torch.zeros((), dtype=whole.dtype).expand(whole.shape)

    return value


def _complete(
    attempt: Attempt, beside: Path, progress: Progress, run_yaml: str, keep: int | None, known: Checksums
) -> Path:
    """Adds what a person reads, and puts the checkpoint in place."""
    texts = {RUN_FILE: run_yaml, FILE: progress.json(), written_by.FILE: written_by.written_by()}
    with attempt.writing():
        for name, text in texts.items():
            (beside / name).write_text(text, encoding="utf-8")
    return publish(attempt, progress.step, keep, known)


def _from_all_ranks(mine: Checksums) -> Checksums:
    """The checksums that all ranks took, each of its own files: to read them all would keep one rank long."""
    everyone: list[Checksums] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {name: checksum for part in everyone for name, checksum in part.items()}
