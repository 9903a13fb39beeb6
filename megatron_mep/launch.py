"""A run and a cluster become a job, or every mistake in them is told before anything is submitted."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from megatron_mep.allocation import Allocation, fewest_nodes, judge
from megatron_mep.config.errors import ConfigError, Mistake, UserError
from megatron_mep.launcher import folder as launched
from megatron_mep.launcher.history import finished_step, jobs_of, note_submission
from megatron_mep.launcher.profile import Launcher, load_cluster
from megatron_mep.launcher.script import Job, batch_script
from megatron_mep.launcher.slurm import is_there, queued, submit
from megatron_mep.preflight import preflight
from megatron_mep.run import RunConfig, load_run

Loaded = TypeVar("Loaded")

STOP_FILE = "STOP"
PLAIN_PATH = re.compile(r"[\w./+=:@,~-]+")
"""Paths that directives of sbatch take as they are."""


@dataclass(frozen=True)
class Wish:
    """What the user asks for."""

    run_file: Path
    overrides: list[str]
    cluster: str
    """A profile's name or path."""
    nodes: int | None
    """The fewest that hold the model where absent."""
    launcher: Launcher | None
    """The profile's where absent."""
    time: str | None
    """The longest that the profile allows where absent."""
    command: str
    """As it was typed."""


@dataclass(frozen=True)
class Prepared:
    """A job that nothing is known to stand against."""

    run: RunConfig
    allocation: Allocation
    job: Job
    script: str
    warnings: list[str]
    command: str

    @property
    def summary(self) -> str:
        """What is asked for."""
        job = self.job
        return f"{job.name} on {job.nodes} nodes, {self.allocation.ranks} ranks by {job.launcher}, for {job.time}"

    def submit(self) -> str:
        """Writes the script and its company into the run's folder, and submits it; what to do next."""
        run_folder, told = Path(self.job.run_folder), self.run.folder
        script = launched.write(Path(self.job.run_file).parent, self.script, self.run.yaml(), self.command)
        number = submit(script)
        note_submission(run_folder, number, script)
        return "\n".join(
            [
                f"job {number}: {self.summary}",
                f"  its output      tail -F {run_folder / launched.LOGS / number}.log",
                f"  how far it is   mep status {told}",
                f"  to stop it      touch {told / STOP_FILE}   (saves first; `scancel {number}` does not wait)",
            ]
        )


def prepare(wish: Wish, submits: bool, now: datetime) -> Prepared:
    """The job, rendered; nothing is written. A `ConfigError` tells all mistakes at once."""
    mistakes: list[Mistake] = []
    cluster = _loaded(lambda: load_cluster(wish.cluster), mistakes)
    run = _loaded(lambda: load_run(wish.run_file, wish.overrides), mistakes)
    warnings: list[str] = []
    if run is not None:
        mistakes += _folder_mistakes(run)
    if run is not None and cluster is not None:
        time = wish.time or cluster.time_limit
        allocation = Allocation(cluster, wish.nodes or fewest_nodes(run, cluster), time)
        verdict = judge(run, allocation)
        mistakes += verdict.mistakes
        warnings += verdict.warnings
    if submits and not is_there():
        remedy = "run this on a login node of the cluster, or add --dry-run to see the script"
        mistakes.append(Mistake("sbatch", None, "is not on the PATH", remedy))
    if mistakes or run is None or cluster is None:
        raise ConfigError(mistakes)
    job = _job(run, allocation, wish.launcher or cluster.launcher, now)
    return Prepared(run, allocation, job, batch_script(job, cluster), warnings, wish.command)


def check_local(run_file: Path, overrides: list[str], ranks: int) -> None:
    """A `ConfigError` tells all that stands against training a run on so many ranks, before one is started."""
    preflight(load_run(run_file, overrides), ranks)


def _job(run: RunConfig, allocation: Allocation, launcher: Launcher, now: datetime) -> Job:
    cluster, run_folder = allocation.cluster, run.folder.absolute()
    return Job(
        name=run.name,
        run_file=str(launched.launch_folder(run_folder, now) / launched.RUN_FILE),
        run_folder=str(run_folder),
        work_folder=str(Path.cwd()),
        nodes=allocation.nodes,
        time=allocation.time,
        launcher=launcher,
        python=cluster.python or ("python" if cluster.container else sys.executable),
    )


def _folder_mistakes(run: RunConfig) -> Iterator[Mistake]:
    folder = run.folder.absolute()
    if not PLAIN_PATH.fullmatch(str(folder)):
        yield Mistake("runs", run.runs, f"gives {folder}, a path that SLURM's directives cannot hold",
                      "use letters, digits and ./_- alone, also in the current folder's path")  # fmt: skip
        return
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not _is_writable(there):
        yield Mistake("runs", run.runs, f"cannot be written: {there} is not a folder in which you may write",
                      "set runs to one that all nodes share")  # fmt: skip
        return
    if (folder / STOP_FILE).exists():
        yield Mistake(str(run.folder / STOP_FILE), None, "stops the run at its first step", "remove it")
    step = finished_step(folder)
    if step is not None and step >= run.training.steps:
        yield Mistake("training.steps", run.training.steps, f"are done: {run.folder} is finished at step {step}",
                      "raise it, or give another name")  # fmt: skip
    for waiting in queued(jobs_of(folder)):
        rule = f"is written by job {waiting.job} already, which is {waiting.state} ({waiting.reason})"
        yield Mistake("name", run.name, rule, f"wait for it, or `scancel {waiting.job}` first")


def _is_writable(folder: Path) -> bool:
    """By a file without a name: permissions alone do not tell it of every disk, nor for every user."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _loaded(load: Callable[[], Loaded], mistakes: list[Mistake]) -> Loaded | None:
    """What can be loaded; else its mistakes are added."""
    try:
        return load()
    except UserError as error:
        mistakes += error.mistakes
        return None
