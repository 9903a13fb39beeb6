"""What a job leaves in the folder of its run: the script, the resolved run file, the environment and the code.

<run>/launch/<time>/job.sbatch, run.yaml, environment.txt, code.txt, command.txt     a folder for each `mep launch`
<run>/launch/jobs.jsonl, starts, started                                            what the jobs' scripts write
<run>/logs/<job>.log                                                                what ranks print
"""

import os
import platform
import socket
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path

from megatron_mep.commit import PACKAGE, commit_of_package, differences

LAUNCH, LOGS = "launch", "logs"
JOBS = "jobs.jsonl"
SCRIPT, RUN_FILE, ENVIRONMENT, CODE, COMMAND = "job.sbatch", "run.yaml", "environment.txt", "code.txt", "command.txt"
TOLD_VARIABLES = ("CUDA_", "DS_", "GLOO_", "HF_", "LD_", "MEP_", "NCCL_", "OMP_", "PATH", "PYTHON", "SLURM_", "TORCH",
                  "TRITON_", "VIRTUAL_ENV")  # fmt: skip
"""How the names of variables begin that are written down; others may hold what is nobody's business."""


def launch_folder(run_folder: Path, now: datetime) -> Path:
    """The folder of what is launched now."""
    return run_folder / LAUNCH / now.strftime("%Y%m%d-%H%M%S")


def write(folder: Path, script: str, run_file: str, command: str) -> Path:
    """Writes all that says what was launched; the script's path."""
    folder.mkdir(parents=True)
    (folder.parent.parent / LOGS).mkdir(exist_ok=True)
    texts = {
        SCRIPT: script,
        RUN_FILE: run_file,
        ENVIRONMENT: environment_text(os.environ),
        CODE: code_text(),
        COMMAND: command + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / SCRIPT


def environment_text(environ: Mapping[str, str]) -> str:
    """Machine, Python, its packages, and the variables that may matter."""
    packages = sorted({f"{found.name}=={found.version}" for found in metadata.distributions()}, key=str.lower)
    variables = [f"{name}={value}" for name, value in sorted(environ.items()) if name.startswith(TOLD_VARIABLES)]
    machine = [f"host {socket.gethostname()}", f"python {platform.python_version()} at {sys.executable}"]
    return "\n".join([*machine, "", *packages, "", *variables]) + "\n"


def code_text() -> str:
    """The version of this package, and where it is a clone the commit and what differs from it."""
    told = [f"megatron-mep {metadata.version('megatron-mep')}"]
    commit = commit_of_package()
    if commit is not None:
        differing = "what differs from it is unknown" if (found := differences()) is None else found
        told += [f"commit {commit.sha} of {PACKAGE.parent}", differing or "nothing differs from it"]
    return "\n".join(told) + "\n"
