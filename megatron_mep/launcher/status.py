"""What became of a run, and what comes next, read off its folder and SLURM's queue."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.launcher.folder import COMMAND, LAUNCH, LOGS, RUN_FILE
from megatron_mep.launcher.history import Record, attempt_records, finished_step, job_records, jobs_of, records_in
from megatron_mep.launcher.slurm import Queued, queued

NUM_LOG_LINES = 8

State = Literal["finished", "running", "queued", "stopped", "ended", "lost", "not started"]


@dataclass(frozen=True)
class Attempt:
    """One start of the ranks."""

    started: str
    ended: str | None
    """`None` where nobody has noted an end: it goes on, or was killed."""
    where: str
    """Nodes, or the host of the first rank."""
    process: int
    """Of the first rank."""
    job: str | None
    restarts: int
    ranks: int | None
    first_step: int | None
    last_step: int | None
    reason: str | None
    exit_code: int | None

    @property
    def is_alive(self) -> bool:
        """Whether it is seen to run on this machine."""
        return self.ended is None and self.where == socket.gethostname() and Path(f"/proc/{self.process}").exists()


@dataclass(frozen=True)
class Status:
    """All that is known of a run."""

    folder: str
    name: str
    state: State
    steps: int
    """That it is to have."""
    step: int
    """The last that was recorded."""
    checkpoint: str | None
    """The name of the latest."""
    loss: float | None
    tokens_per_s: float | None
    attempts: tuple[Attempt, ...]
    queue: tuple[Queued, ...]
    last_words: str | None
    """Of the last job's script."""
    log: str | None
    log_lines: tuple[str, ...]
    """The last ones."""
    next: str
    """What to do."""

    def json(self) -> str:
        """For a program."""
        return json.dumps({**asdict(self), "queue": [job._asdict() for job in self.queue]}, indent=2)

    def __str__(self) -> str:
        facts = [f"{self.name}: {self.state}", *(f"  {name:<11}  {told}" for name, told in self._facts())]
        facts += [f"  {'attempt' if not index else '':<11}  {_told(each)}" for index, each in enumerate(self.attempts)]
        if self.log:
            facts += [f"  {'log':<11}  {self.log}", *(f"    | {line}" for line in self.log_lines)]
        return "\n".join([*facts, f"  {'next':<11}  {self.next}"])

    def _facts(self) -> Iterator[tuple[str, str]]:
        yield "step", f"{self.step:,} of {self.steps:,}, {self.step / self.steps:.1%}"
        yield "checkpoint", self.checkpoint or "none yet"
        if self.loss is not None:
            yield "loss", f"{self.loss:.4f}"
        if self.tokens_per_s:
            yield "tokens/s", f"{self.tokens_per_s:,.0f}"
        for job in self.queue:
            yield f"job {job.job}", f"{job.state} {job.reason}"
        if self.last_words:
            yield "last job", self.last_words


def status_of(folder: Path) -> Status:
    """The status of the run in a folder; a `UserError` where that is none."""
    run = _run_in(folder)
    steps, jobs = run["training"]["steps"], job_records(folder)
    metrics: Record = next(reversed(records_in(folder / "metrics.jsonl")), {})
    attempts = tuple(_attempts(attempt_records(folder)))
    queue = tuple(queued(jobs_of(folder)))
    finished = finished_step(folder)
    checkpoint = _latest(folder)
    state = _state(folder, finished is not None and finished >= steps, attempts, queue)
    log = _log(folder, jobs)
    ends = [record for record in jobs if record.get("event") == "end"]
    return Status(
        folder=str(folder),
        name=run["name"],
        state=state,
        steps=steps,
        step=max(finished or 0, metrics.get("step") or 0, _step_of(checkpoint)),
        checkpoint=checkpoint,
        loss=metrics.get("loss"),
        tokens_per_s=metrics.get("tokens_per_s"),
        attempts=attempts,
        queue=queue,
        last_words=f"{ends[-1]['job']}: {ends[-1].get('reason', '')}" if ends else None,
        log=str(log) if log else None,
        log_lines=_last_lines(log) if log else (),
        next=_next(folder, state, attempts, log),
    )


def _run_in(folder: Path) -> dict[str, Any]:
    """The resolved run file that ranks have written, or the last one that was launched."""
    launched = sorted((folder / LAUNCH).glob(f"*/{RUN_FILE}"))
    file = next((file for file in (folder / RUN_FILE, *launched[::-1]) if file.is_file()), None)
    if file is None:
        raise UserError(Mistake(str(folder), None, "is not the folder of a run", "give one, for example runs/my_run"))
    run: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return run


def _attempts(records: list[Record]) -> Iterator[Attempt]:
    """A start and its end; where the next start comes first, there was no end."""
    started: Record | None = None
    for record in records:
        if record.get("event") == "start":
            if started is not None:
                yield _attempt(started, {})
            started = record
        elif started is not None:
            yield _attempt(started, record)
            started = None
    if started is not None:
        yield _attempt(started, {})


def _attempt(start: Record, end: Record) -> Attempt:
    job = start.get("job_id")
    return Attempt(
        started=start.get("time", "unknown"),
        ended=end.get("time"),
        where=start.get("nodes") or start.get("host", "unknown"),
        process=start.get("process", 0),
        job=None if job is None else str(job),
        restarts=start.get("restart_count", 0),
        ranks=start.get("world_size"),
        first_step=start.get("step"),
        last_step=end.get("step"),
        reason=end.get("reason"),
        exit_code=end.get("exit_code"),
    )


def _state(folder: Path, is_finished: bool, attempts: tuple[Attempt, ...], queue: tuple[Queued, ...]) -> State:
    if is_finished:
        return "finished"
    if queue:
        return "queued" if all(job.state == "PENDING" for job in queue) else "running"
    if attempts and attempts[-1].is_alive:
        return "running"
    if (folder / "STOP").exists():
        return "stopped"
    if attempts and attempts[-1].ended is None:
        return "lost"
    return "ended" if attempts or job_records(folder) else "not started"


def _next(folder: Path, state: State, attempts: tuple[Attempt, ...], log: Path | None) -> str:
    again = _command(folder, attempts)
    if state == "finished":
        return f"mep evaluate {folder}"
    if state in ("running", "queued"):
        return f"wait, or follow it: tail -F {log}" if log else "wait"
    if state == "stopped":
        return f"rm {folder / 'STOP'} && {again}"
    if attempts and attempts[-1].exit_code in (2, 3):
        return f"put right what it ended for, then {again}"
    return again


def _command(folder: Path, attempts: tuple[Attempt, ...]) -> str:
    """What continues the run as it was started."""
    launched = sorted((folder / LAUNCH).glob(f"*/{COMMAND}"))
    if launched:
        return launched[-1].read_text(encoding="utf-8").strip()
    ranks = attempts[-1].ranks if attempts else None
    return (
        f"mep launch {folder / RUN_FILE} --local {ranks}" if ranks and ranks > 1 else f"mep train {folder / RUN_FILE}"
    )


def _latest(folder: Path) -> str | None:
    file = folder / "checkpoints" / "latest"
    return file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else None


def _step_of(checkpoint: str | None) -> int:
    number = (checkpoint or "").removeprefix("step_")
    return int(number) if number.isdecimal() else 0


def _log(folder: Path, jobs: list[Record]) -> Path | None:
    """That of the last job that said where it is, or the newest in the run's folder."""
    stated = [Path(record["log"]) for record in jobs if record.get("log")]
    there = sorted((folder / LOGS).glob("*.log"), key=lambda file: file.stat().st_mtime)
    return next((file for file in (*stated[::-1], *there[::-1]) if file.is_file()), None)


def _last_lines(log: Path) -> tuple[str, ...]:
    with log.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - 65536))
        return tuple(stream.read().decode(errors="replace").splitlines()[-NUM_LOG_LINES:])


def _told(attempt: Attempt) -> str:
    by = f"job {attempt.job}, restart {attempt.restarts}, " if attempt.job else ""
    steps = f"from step {attempt.first_step or 0:,}"
    if attempt.ended is None:
        return f"{attempt.started}  {by}{attempt.where}: {steps}, no end was noted"
    code = "" if not attempt.exit_code else f" (exit code {attempt.exit_code})"
    return f"{attempt.started}  {by}{attempt.where}: {steps} to {attempt.last_step or 0:,}, {attempt.reason}{code}"
