"""What became of every job of a run: <run>/attempts.jsonl, two lines each, and <run>/finished.json at the very end."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from megatron_mep.checkpoint.disk import write_atomically
from megatron_mep.config.errors import UserError
from megatron_mep.training.stopping import Stopped

ATTEMPTS_FILE = "attempts.jsonl"
FINISHED_FILE = "finished.json"


class AttemptLog:
    """Writes a line when a job starts training and one when it ends, by whatever but a kill; on one rank.

    Args:
        folder: The run's; where it is not made yet, a job that is refused leaves no line.
        world_size: Ranks of the job.
        writes: Whether this rank does.
    """

    def __init__(self, folder: Path, world_size: int, writes: bool) -> None:
        self._file, self._world_size, self._writes = folder / ATTEMPTS_FILE, world_size, writes
        self._has_begun = self._has_ended = False
        self.step: int | None = None
        """The last that was done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(*_reason(error))

    def begin(self, step: int | None) -> None:
        """The job goes on from a step."""
        self.step, self._has_begun = step, True
        self._write("start", world_size=self._world_size, nodes=os.environ.get("SLURM_JOB_NODELIST"))

    def end(self, reason: str, exit_code: int) -> None:
        """The job ends; what is told first counts."""
        if self._has_ended or not (self._has_begun or self._file.parent.is_dir()):
            return
        if not self._has_begun:
            self.begin(None)
        self._has_ended = True
        self._write("end", reason=reason, exit_code=exit_code)

    def _write(self, event: str, **facts: Any) -> None:
        if not self._writes:
            return
        job = os.environ.get("SLURM_JOB_ID")
        record = {
            "event": event,
            "time": _now(),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "job_id": int(job) if job else None,
            "restart_count": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            "step": self.step,
            **facts,
        }
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


@dataclass(frozen=True)
class Finished:
    """The end of a run: the only sign of it that a script should go by."""

    step: int
    loss: float | None
    """Of the last step, nats per token; `None` where it was not finite."""
    time: str
    version: str

    @classmethod
    def now(cls, step: int, loss: float) -> "Finished":
        """The end of a run by this version."""
        return cls(step, loss if isfinite(loss) else None, _now(), version("megatron-mep"))

    @classmethod
    def read(cls, folder: Path) -> "Finished | None":
        """What a run's folder says; `None` where the run has not come to its end."""
        file = folder / FINISHED_FILE
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None

    def write(self, folder: Path) -> None:
        """Into a run's folder."""
        write_atomically(folder / FINISHED_FILE, json.dumps(asdict(self)) + "\n")


def unfinish(folder: Path) -> None:
    """A run goes on that had come to its end, as more steps were asked of it."""
    (folder / FINISHED_FILE).unlink(missing_ok=True)


def _reason(error: BaseException | None) -> tuple[str, int]:
    """Why a job ends, and by which exit code."""
    match error:
        case None:
            return "finished", 0
        case Stopped():
            return error.reason, os.EX_TEMPFAIL
        case UserError():
            return str(error.mistakes[0]), error.exit_code
        case _:
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", 1


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
