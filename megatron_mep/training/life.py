"""The life of a job of a run: what asks it to stop, what watches over it, and what it leaves written."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from megatron_mep.parallel.groups import Groups
from megatron_mep.parallel.job_config import JobConfig
from megatron_mep.parallel.watchdog import EXIT_CODE, Watchdog
from megatron_mep.training.attempts import AttemptLog
from megatron_mep.training.signals import Signals
from megatron_mep.training.stopping import END_TIME, STOP_FILE, Stopping, end_time


@dataclass(frozen=True)
class Life:
    """The parts of it."""

    stopping: Stopping
    log: AttemptLog
    watchdog: Watchdog

    def begin(self, step: int) -> None:
        """Training goes on from a step."""
        self.log.begin(step)
        self.watchdog.tick()

    def came_to(self, step: int) -> None:
        """A step is done, or what was due after it."""
        self.log.step = step
        self.watchdog.tick()


@contextmanager
def life_of(folder: Path, job: JobConfig, groups: Groups, signals: Signals) -> Iterator[Life]:
    """The life of a job of the run in `folder`; collective."""
    started_s = time.time()
    writes = groups.rank == 0
    with AttemptLog(folder, groups.world_size, writes) as log:
        watchdog = Watchdog.of_job(
            groups.rank, groups.world_size, job, folder, on_end=lambda reason: log.end(reason, EXIT_CODE)
        )
        end_s = end_time(started_s, job.stop_after_minutes, os.environ.get(END_TIME))
        stopping = Stopping(signals, folder / STOP_FILE if writes else None, end_s)
        with watchdog:
            yield Life(stopping, log, watchdog)
