"""Layouts in which sequences and layers are whole on each rank, for work that tensor and data ranks alone can share."""

from collections.abc import Iterator
from pathlib import Path

from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.checkpoint.resume import check_tokenizer
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.data.manifest import Manifest
from megatron_mep.run import RunConfig

UNDIVIDED = ("parallel.sequence=false", "parallel.context=1", "parallel.pipeline=1", "parallel.virtual_pipeline=1")
"""The overrides that undo what a run was trained at."""


def undivided_mistakes(run: RunConfig, reason: str) -> Iterator[Mistake]:
    """The axes that a user asks for all the same, and why they cannot be had."""
    parallel = run.parallel
    stated = {"context": parallel.context > 1, "pipeline": parallel.pipeline > 1, "sequence": parallel.sequence}
    for key in (key for key, is_stated in stated.items() if is_stated):
        yield Mistake(f"parallel.{key}", getattr(parallel, key), f"cannot be used here: {reason}", "leave it out")


def corpus_for(run: RunConfig, checkpoint: Path, world_size: int, reason: str) -> Manifest:
    """The run's corpus, by whose tokenizer the checkpoint was trained; a `UserError` where ranks cannot share it so."""
    run.parallel.data(world_size)
    mistakes = list(undivided_mistakes(run, reason))
    if mistakes:
        raise ConfigError(mistakes)
    corpus = Manifest.load(Path(run.data.folder))
    check_tokenizer(read_progress(checkpoint), corpus.tokenizer_sha256, checkpoint)
    return corpus
