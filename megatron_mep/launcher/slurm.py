"""What is asked of SLURM's own commands: to take a job, and what became of one."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from megatron_mep.config.errors import Mistake, UserError

TIMEOUT_S = 60


class LaunchError(UserError):
    """A job cannot be started."""


class Queued(NamedTuple):
    """A job that waits or runs."""

    job: str
    state: str
    """As SLURM says it: PENDING, RUNNING, COMPLETING."""
    reason: str
    """Why it waits, or on which nodes it runs."""


def is_there() -> bool:
    """Whether jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None


def submit(script: Path) -> str:
    """The number of the job that a script became."""
    try:
        done = _called("sbatch", "--parsable", str(script))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(Mistake("sbatch", None, f"cannot be called ({error})", "run it on a login node")) from None
    if done.returncode:
        told = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        remedy = f"correct the cluster's profile, or {script} and submit that by `sbatch {script}`"
        raise LaunchError(Mistake("sbatch", None, f"does not take the job ({told})", remedy))
    # behind a semicolon stands the cluster, where there are several
    return done.stdout.strip().partition(";")[0]


def queued(jobs: list[str]) -> list[Queued]:
    """Those of some jobs that wait or run; none where there is no SLURM, or it does not answer."""
    if not jobs or shutil.which("squeue") is None:
        return []
    try:
        done = _called("squeue", "--noheader", f"--jobs={','.join(jobs)}", "--format=%i|%T|%R")
    except (OSError, subprocess.TimeoutExpired):
        return []
    # a job that SLURM has forgotten makes it fail, and the others are told all the same
    rows = [line.strip().split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
    return [Queued(*row) for row in rows]


def _called(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
