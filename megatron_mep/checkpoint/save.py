"""Taking a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

from megatron_mep.checkpoint import written_by
from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.config import CheckpointConfig
from megatron_mep.checkpoint.disk import told_as_mistake
from megatron_mep.checkpoint.draft import Draft
from megatron_mep.checkpoint.files import RUN_FILE, begin
from megatron_mep.checkpoint.finite import refuse_non_finite
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.progress import FILE, Progress
from megatron_mep.checkpoint.replicas import refuse_differing_replicas
from megatron_mep.checkpoint.shares import parts_to_write, share_of
from megatron_mep.checkpoint.state import Sharded, sharded_generators
from megatron_mep.checkpoint.writer import Files
from megatron_mep.parallel.groups import Groups

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


def take_checkpoint(
    attempt: Attempt,
    engine: "DeepSpeedEngine",
    template: Sharded,
    progress: Progress,
    run_yaml: str,
    config: CheckpointConfig,
    groups: Groups,
) -> Draft:
    """Weights, moments, generators, progress and the resolved run file as they are; collective over all ranks.

    Args:
        attempt: Who writes, and where.
        engine: Holds the weights and moments.
        template: Where each weight belongs, `template_of` the model before it came under ZeRO.
        progress: How far the run has come.
        run_yaml: The resolved run file.
        config: How many of the newest checkpoints stay, whether replicas are compared, and whether training goes on
            before all is written.
        groups: This rank's place.

    Returns:
        What is to be written and put in place; until then nothing of an older checkpoint is touched.
    """
    if config.compare_replicas:
        refuse_differing_replicas(engine, groups)
    mine = share_of(template, groups.weights_group.rank(), groups.weights_group.size())
    parts = parts_to_write(engine, template, mine, copied=config.asynchronous)
    kept = [{name: entry for name, entry in part.items() if (kind, name) in mine} for kind, part in parts.items()]
    refuse_non_finite(template, kept, attempt.root)
    folder = told_by_rank_0(lambda: _begun(attempt, progress.step))
    files = Files.planned({**parts, "generators": sharded_generators(groups)}, folder)
    texts = {RUN_FILE: run_yaml, FILE: progress.json(), written_by.FILE: written_by.written_by(attempt.commit)}
    return Draft(attempt, files, texts, progress.step, config.keep)


def _begun(attempt: Attempt, step: int) -> Path:
    with told_as_mistake(attempt.root):
        return begin(attempt, step)
