"""Which attempt at a run may write its checkpoints: the one that was started last, and no other at any instant.

<run>/checkpoints/.attempt_<token>/   what the attempt is writing, before it is renamed into place, and what it has
                                      taken out of place, before it is removed

All that a writer changes beside its own folder it changes by a rename out of it or into it. A later attempt renames
that folder away: whatever an earlier one, still alive, had looked at before, its next rename fails.
"""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from megatron_mep.commit import Commit, commit_of_package
from megatron_mep.config.errors import CheckpointError, Mistake

PREFIX = ".attempt_"
_WRITER = "writer.json"


@dataclass(frozen=True)
class Attempt:
    """An attempt at the run whose checkpoints are in `root`."""

    root: Path
    token: str
    commit: Commit | None = None
    """Of the sources that it runs from, asked as it starts: no checkpoint waits for Git."""

    @classmethod
    def start(cls, root: Path) -> "Attempt":
        """The newest attempt; the folders of all earlier ones are below its own from here on."""
        attempt = cls(root, uuid4().hex, commit_of_package())
        attempt.folder.mkdir(parents=True)
        writer = {"host": socket.gethostname(), "process": os.getpid(), "started": datetime.now(UTC).isoformat()}
        (attempt.folder / _WRITER).write_text(json.dumps(writer), encoding="utf-8")
        for other in root.glob(f"{PREFIX}*"):
            # it may have ended; or this one is overtaken, which its first look tells
            with suppress(FileNotFoundError):
                if other != attempt.folder:
                    other.rename(attempt.folder / other.name)
        return attempt

    @property
    def folder(self) -> Path:
        """Where it writes."""
        return self.root / f"{PREFIX}{self.token}"

    @property
    def is_newest(self) -> bool:
        """Whether no later attempt has begun."""
        # not the folder: Megatron-core's writer makes the folders that it does not find
        return (self.folder / _WRITER).is_file()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Ends with a `CheckpointError` where a later attempt has begun, or begins meanwhile."""
        try:
            if not self.is_newest:
                raise self._overtaken()
            yield
        except OSError:
            if self.is_newest:
                raise
            raise self._overtaken() from None

    def set_aside(self, folder: Path) -> None:
        """Takes a checkpoint out of place in one go: removing it takes longer, and may be cut short."""
        folder.rename(self.folder / aside(folder.name))

    def clear(self) -> None:
        """Removes what was set aside, and what earlier attempts have left."""
        for entry in self.folder.iterdir():
            if entry.name != _WRITER:
                # an earlier attempt that is still alive may be writing there
                shutil.rmtree(entry, ignore_errors=True)

    def end(self) -> None:
        """Leaves no trace; nothing is written afterwards."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _overtaken(self) -> CheckpointError:
        writers = [json.loads(file.read_text(encoding="utf-8")) for file in self.root.glob(f"{PREFIX}*/{_WRITER}")]
        by = ", ".join(f"{key} {value}" for key, value in writers[0].items()) if writers else "which has ended"
        rule = f"belongs to a later attempt at this run ({by}): this one writes no more checkpoints"
        remedy = "let that one go on, or start the run again once both have ended"
        return CheckpointError(Mistake(str(self.root), None, rule, remedy))


def aside(name: str) -> str:
    """What a checkpoint is called where it was set aside."""
    return f"{name}.aside"
