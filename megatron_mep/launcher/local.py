"""Ranks on this machine: several of them through the deepspeed launcher, one without."""

import os
import subprocess
import sys
from collections.abc import Mapping


def local_command(ranks: int, run: str, overrides: list[str]) -> list[str]:
    """What starts so many ranks that train a run."""
    return ranks_command(ranks, ["train", run, *overrides])


def ranks_command(ranks: int, arguments: list[str]) -> list[str]:
    """What starts so many ranks of a `mep` command."""
    # as a module: its script may not be on the path
    if ranks == 1:
        return [sys.executable, "-m", "megatron_mep", *arguments]
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks), "--no_local_rank"]
    return [*launcher, "--log_level", "warning", "--module", "megatron_mep", *arguments]


def local_environment(environ: Mapping[str, str], ranks: int, cores: int) -> dict[str, str]:
    """This process's variables; ranks that would all use all cores share them."""
    return {"OMP_NUM_THREADS": str(max(1, cores // ranks)), **environ}


def train_locally(ranks: int, run: str, overrides: list[str]) -> int:
    """Trains to the end; the exit code of the first rank that failed, or 0."""
    return run_locally(ranks, ["train", run, *overrides])


def run_locally(ranks: int, arguments: list[str]) -> int:
    """Runs a `mep` command on so many ranks to the end; the exit code of the first that failed, or 0."""
    environment = local_environment(os.environ, ranks, len(os.sched_getaffinity(0)))
    return subprocess.run(ranks_command(ranks, arguments), env=environment, check=False).returncode
