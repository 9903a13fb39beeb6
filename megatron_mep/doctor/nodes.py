"""The other nodes of a SLURM allocation: whether their clocks agree with this one's."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping

from megatron_mep.doctor.finding import Finding, ok, red, warn

SKEW_TOLD_S, SKEW_REFUSED_S = 2.0, 60.0
TIMEOUT_S = 60


def nodes(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Nothing outside of an allocation of several nodes, and in one of its tasks."""
    number = environ.get("SLURM_JOB_NUM_NODES", "1")
    if number == "1" or "SLURM_STEP_ID" in environ:
        return
    command = ["srun", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1", "--overlap",
               "sh", "-c", "echo $(hostname) $(date +%s.%N)"]  # fmt: skip
    began_s = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield red("clocks", f"srun does not start a task on each of {number} nodes: {error}", "look at sinfo -R")
        return
    yield clocks(done.stdout, int(number), began_s, time.time())


def clocks(told: str, number: int, began_s: float, ended_s: float) -> Finding:
    """What tasks say, `host seconds` a line each, that ran between two times of this host's clock."""
    times = {host: float(second) for host, second in (line.split() for line in told.splitlines())}
    if len(times) < number:
        return red("clocks", f"{len(times)} of {number} nodes answered: {', '.join(times)}", "look at sinfo -R")
    off = {host: max(began_s - second, second - ended_s, 0.0) for host, second in times.items()}
    worst, skew_s = max(off.items(), key=lambda item: item[1])
    told = f"{worst} is off by {skew_s:.1f} s at least"
    if skew_s > SKEW_REFUSED_S:
        return red("clocks", told, f"leave it out (--exclude={worst}), and have its clock set")
    if skew_s > SKEW_TOLD_S:
        return warn("clocks", told, "have its clock set; times in logs and job.stop_after_minutes go by it")
    return ok("clocks", f"{number} nodes agree within the {ended_s - began_s:.1f} s that it took to ask them")
