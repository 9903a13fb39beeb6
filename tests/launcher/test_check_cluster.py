"""launch/check_cluster.py, started as on a cluster: it tells of all ranks, and names one that does not come."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "launch" / "check_cluster.py"

pytestmark = pytest.mark.slow


def checked(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1]), **variables}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=170,
                          check=False)  # fmt: skip


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_ranks_of_one_machine_are_told_of():
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = checked(*launcher, str(SCRIPT))
    assert re.search(rf"^{re.escape(socket.gethostname())}: 2 ranks on CPU, ", done.stdout, re.MULTILINE), done.stderr
    assert len(re.findall(r"^all-reduce of ", done.stdout, re.MULTILINE)) == 3


def test_a_rank_that_does_not_come_is_named():
    done = checked(
        str(SCRIPT), "--timeout", "8", RANK="0", LOCAL_RANK="0", WORLD_SIZE="4", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR=socket.gethostname(), MASTER_PORT=free_port(), SLURM_JOB_NODELIST="node[1-4]",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == "SILENT: rank 1 on node2, rank 2 on node3, rank 3 on node4 did not come in 8 s\n"


def test_a_first_rank_that_does_not_come_is_told_by_the_others():
    done = checked(
        str(SCRIPT), "--timeout", "8", RANK="1", LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR=socket.gethostname(), MASTER_PORT=free_port(), SLURM_JOB_NODELIST="node[1-2]",
    )  # fmt: skip
    assert done.returncode != 0
    assert "SILENT" in done.stdout
