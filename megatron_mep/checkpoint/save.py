"""Writing a checkpoint."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from megatron.core import dist_checkpointing

from megatron_mep.checkpoint.files import begin, publish
from megatron_mep.checkpoint.progress import FILE, Progress
from megatron_mep.checkpoint.state import Sharded, moment, sharded_generators, weights
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
        "model": weights(template, master_of),
        **{name: moment(template, name, partial(moment_of, name=name, engine=engine)) for name in MOMENTS},
        "generators": sharded_generators(groups),
    }
    write_in_this_process()
    beside = begin(root, progress.step) if dist.get_rank() == 0 else None
    folder = [str(beside)]
    dist.broadcast_object_list(folder, src=0)
    dist_checkpointing.save(state, folder[0])
    final = [""]
    if beside is not None:
        (beside / RUN_FILE).write_text(run_yaml, encoding="utf-8")
        (beside / FILE).write_text(progress.json(), encoding="utf-8")
        final = [str(publish(root, progress.step, keep))]
    dist.broadcast_object_list(final, src=0)
    return Path(final[0])
