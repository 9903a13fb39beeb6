"""A checkpoint that is taken and not yet in place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.storage import WriteResult

from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.disk import told_as_mistake
from megatron_mep.checkpoint.files import publish
from megatron_mep.checkpoint.manifest import Checksums, checksums
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.writer import Files
from megatron_mep.config.errors import CheckpointError, Mistake


@dataclass(frozen=True)
class Written:
    """What came of one rank's files."""

    results: list[WriteResult] = field(default_factory=list)
    checksums: Checksums = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()
    """Why they could not be written."""


@dataclass(frozen=True)
class Draft:
    """The state of a run after a step, on this rank, which training that goes on does not change."""

    attempt: Attempt
    files: Files
    texts: dict[str, str]
    """What a person reads, by file names."""
    step: int
    keep: int | None
    """How many of the newest checkpoints stay."""

    def write(self, rank: int, is_unwanted: Callable[[], bool] = lambda: False) -> Written:
        """Writes this rank's files, until they are not wanted any more; not collective, in any thread."""
        folder = self.files.folder
        try:
            with told_as_mistake(self.attempt.root), self.attempt.writing():
                results = self.files.write(is_unwanted)
                return Written(results, {} if is_unwanted() else checksums(folder.glob(f"__{rank}_*")))
        except CheckpointError as error:
            return Written(mistakes=error.mistakes)

    def publish(self, mine: Written) -> Path:
        """Puts the checkpoint in place, once all ranks have written their files; collective.

        A `CheckpointError` on all ranks says why it cannot be done, also where a single one could not write.
        """
        everyone: list[Written] | None = [Written()] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(mine, everyone)
        return told_by_rank_0(lambda: self._complete(everyone or ()))

    def _complete(self, everyone: Sequence[Written]) -> Path:
        if mistakes := dict.fromkeys(mistake for written in everyone for mistake in written.mistakes):
            raise CheckpointError(mistakes)
        with told_as_mistake(self.attempt.root):
            with self.attempt.writing():
                for name, text in self.texts.items():
                    (self.files.folder / name).write_text(text, encoding="utf-8")
                self.files.complete([written.results for written in everyone])
            # each rank took those of its own files: to read them all would keep one long
            known = {name: checksum for written in everyone for name, checksum in written.checksums.items()}
            return publish(self.attempt, self.step, self.keep, known)
