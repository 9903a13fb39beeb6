"""SLURM's commands in miniature, on the PATH of one test: they do what the test says and write down what was asked."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from megatron_mep.launcher.profile import Cluster
from megatron_mep.launcher.script import Job, batch_script

SRUN = """#!/bin/bash
# the check of nodes is the one with eval in it
case "$*" in
  *'eval "$1"'*) for node in $HEALTHY; do echo "$node"; done ;;
  *) printf '%s\\n' "$@" >"$FOLDER/ranks.arguments"; env >"$FOLDER/ranks.environment"; eval "$RANKS" ;;
esac
"""
SCONTROL = """#!/bin/bash
case "$1 $2" in
  "show hostnames") printf '%s\\n' $NODES ;;
  "show job")
    printf 'JobId=%s JobName=x\\n   JobState=%s Reason=%s Dependency=(null)\\n' "$3" "$JOB_STATE" "$JOB_REASON"
    printf '   StartTime=2030-01-01T00:00:00 EndTime=%s Deadline=N/A\\n' "$END_TIME"
    printf '   Command=%s\\n   StdOut=%s\\n' "$FOLDER/job.sbatch" "$FOLDER/job.log" ;;
  requeue*)
    echo "requeue $2" >>"$FOLDER/asked"
    [ "$REQUEUE_WORKS" = yes ] || exit 1
    kill -KILL "$PPID" ;;
esac
"""
SBATCH = """#!/bin/bash
echo "sbatch $* (without ${MEP_WITHOUT:-nothing}, SLURM_JOB_ID ${SLURM_JOB_ID:-unset})" >>"$FOLDER/asked"
[ -z "$SBATCH_FAILS" ] || { echo "$SBATCH_FAILS" >&2; exit 1; }
echo "${SBATCH_SAYS:-4243}"
"""
SQUEUE = """#!/bin/bash
echo "squeue $*" >>"$FOLDER/asked"
printf '%s' "$QUEUE"
"""
SAVE = 'mkdir -p "$FOLDER/run/checkpoints"; echo step_00000010 >"$FOLDER/run/checkpoints/latest"; '
"""What ranks do that write a checkpoint."""
FINISH = 'echo "{}" >"$FOLDER/run/finished.json"; '
"""What ranks do that come to the end of the run."""


@dataclass
class Slurm:
    """A cluster of two nodes whose commands are stubs."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir()
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "sbatch": SBATCH, "squeue": SQUEUE}.items():
            file = self.folder / "bin" / name
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a batch script, unless the test says otherwise."""
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "FOLDER": str(self.folder),
            "NODES": "node1 node2",
            "HEALTHY": "node2 node1",
            "RANKS": "exit 0",
            "JOB_STATE": "RUNNING",
            "JOB_REASON": "None",
            "END_TIME": "2030-01-01T01:00:00",
            "REQUEUE_WORKS": "yes",
            "SLURM_JOB_ID": "4242",
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "node[1-2]",
            **self.variables,
        }

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a batch script to its end."""
        file = self.folder / "job.sbatch"
        file.write_text(script, encoding="utf-8")
        environment = self.environment | variables
        return subprocess.run(
            ["bash", file], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def asked(self) -> list[str]:
        """What commands were asked to do, in order."""
        file = self.folder / "asked"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    @property
    def arguments(self) -> list[str]:
        """Those with which srun started the ranks last."""
        return (self.folder / "ranks.arguments").read_text(encoding="utf-8").splitlines()

    def variable(self, name: str) -> str | None:
        """What the ranks had in a variable."""
        lines = (self.folder / "ranks.environment").read_text(encoding="utf-8").splitlines()
        return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}=")), None)


def script(slurm: Slurm, launcher: str = "srun", **profile: object) -> str:
    """A job's script for two nodes of two GPUs, whose run is in the folder `run`."""
    cluster = Cluster.model_validate({"gpus_per_node": 2, "time_limit": "60", "signal_ahead": "10", **profile})
    folder = str(slurm.folder / "run")
    job = Job("tiny", f"{folder}/run.yaml", folder, str(slurm.folder), 2, "60", launcher, "/venv/bin/python")  # type: ignore[arg-type]
    return batch_script(job, cluster)
