"""Writing a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from megatron.core import dist_checkpointing

from megatron_mep.checkpoint.files import begin, publish
from megatron_mep.checkpoint.progress import FILE, Progress
from megatron_mep.checkpoint.state import sharded_generators, sharded_moment, sharded_weights
from megatron_mep.checkpoint.zero_state import MOMENTS, master_of, moment_of
from megatron_mep.parallel.groups import Groups

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

RUN_FILE = "run.yaml"


def save_checkpoint(
    root: Path, engine: "DeepSpeedEngine", progress: Progress, run_yaml: str, keep: int | None, groups: Groups
) -> Path:
    """Writes weights, moments, generators, progress and the resolved run file; collective over all ranks.

    Returns the checkpoint's folder, in place and whole. Until then nothing of an older checkpoint is touched.
    """
    model = engine.module
    state = {
        "model": sharded_weights(model, master_of),
        **{name: sharded_moment(model, name, lambda p, name=name: moment_of(p, name, engine)) for name in MOMENTS},
        "generators": sharded_generators(groups),
    }
    partial = begin(root, progress.step) if dist.get_rank() == 0 else None
    folder = [str(partial)]
    dist.broadcast_object_list(folder, src=0)
    dist_checkpointing.save(state, folder[0])
    final = [""]
    if partial is not None:
        (partial / RUN_FILE).write_text(run_yaml, encoding="utf-8")
        (partial / FILE).write_text(progress.json(), encoding="utf-8")
        final = [str(publish(root, progress.step, keep))]
    dist.broadcast_object_list(final, src=0)
    return Path(final[0])
