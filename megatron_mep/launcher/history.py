"""What jobs and ranks have written of themselves into the folder of a run, a line of JSON each.

<run>/launch/jobs.jsonl   submit, start and end of every job, by `mep launch` and by the jobs' scripts
<run>/attempts.jsonl      start and end of every attempt at training, by its first rank
<run>/finished.json       the mark of a finished run, by its first rank
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from megatron_mep.launcher.folder import JOBS, LAUNCH

ATTEMPTS, FINISHED = "attempts.jsonl", "finished.json"

Record = dict[str, Any]


def note_submission(run_folder: Path, job: str, script: Path) -> None:
    """Adds the line of a job that was submitted."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with (run_folder / LAUNCH / JOBS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"time": now, "event": "submit", "job": job, "script": str(script)}) + "\n")


def job_records(run_folder: Path) -> list[Record]:
    """All lines on jobs, oldest first."""
    return records_in(run_folder / LAUNCH / JOBS)


def attempt_records(run_folder: Path) -> list[Record]:
    """All lines on attempts, oldest first."""
    return records_in(run_folder / ATTEMPTS)


def jobs_of(run_folder: Path) -> list[str]:
    """The numbers of all jobs that the run had, oldest first."""
    return list(dict.fromkeys(str(record["job"]) for record in job_records(run_folder) if record.get("job")))


def finished_step(run_folder: Path) -> int | None:
    """The step at which the run was finished; `None` where it is not."""
    file = run_folder / FINISHED
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def records_in(file: Path) -> list[Record]:
    """The whole lines of a file; a kill can leave half of one."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    found = (_record(line) for line in lines)
    return [record for record in found if record is not None]


def _record(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
