"""Without SLURM: the deepspeed launcher over two nodes of a hostfile trains, and evaluates what it trained."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_mep.evaluation.rows import read_rows
from tests.slurm.jobs import END_S, ROOT, Desk, TrainingJob


@pytest.fixture
def hostfile(desk: Desk, tmp_path: Path) -> Path:
    file = tmp_path / "hosts"
    file.write_text("".join(f"{node} slots=1\n" for node in desk.cluster.nodes[:2]))
    return file


def on_nodes(desk: Desk, nodes: list[str], command: list[str], **variables: str) -> None:
    """The same command on several nodes at once, each told its place; all must succeed."""
    path = f"{Path(sys.executable).parent}:{desk.cluster.environment['PATH']}"
    shell = desk.cluster.environment | desk.variables | {"PATH": path} | variables
    started = [
        subprocess.Popen(
            [*desk.cluster.entering(node), f"--wd={ROOT}", *(word.replace("@PLACE@", str(place)) for word in command)],
            env=shell | ({"NODE_RANK": str(place)} if len(nodes) > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for place, node in enumerate(nodes)
    ]
    told = [process.communicate(timeout=END_S)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(nodes), "\n".join(told)


def test_without_ssh_it_trains_and_evaluates(desk: Desk, undisturbed: TrainingJob, hostfile: Path):
    nodes, place = desk.cluster.nodes[:2], [f"runs={desk.folder / 'runs'}", "name=no_ssh"]
    train = ["bash", "launch/deepspeed.sh", str(desk.run_file), *place]
    on_nodes(desk, nodes, train, HOSTFILE=str(hostfile))
    job = TrainingJob(desk.cluster, desk.folder / "runs" / "no_ssh", "0", desk.folder)
    assert job.losses == undisturbed.losses
    assert job.attempts[0]["world_size"] == 2
    launcher = ["deepspeed", "--hostfile", str(hostfile), "--no_ssh", "--node_rank=@PLACE@", "--no_local_rank"]
    meeting = [f"--master_addr={nodes[0]}", "--master_port=29400"]
    on_nodes(desk, nodes, [*launcher, *meeting, "--module", "megatron_mep", "evaluate", str(job.folder)])
    (rows,) = (job.folder / "evaluation").iterdir()
    assert {row.length for row in read_rows(rows)} == {64, 128, 256}
    assert {row.data_parallel for row in read_rows(rows)} == {2}


@pytest.mark.slow
def test_by_pdsh_it_trains(desk: Desk, undisturbed: TrainingJob, hostfile: Path):
    if shutil.which("pdsh") is None or not desk.cluster.has_ssh:
        pytest.skip("pdsh or sshd is not installed")
    place = [f"runs={desk.folder / 'runs'}", "name=pdsh"]
    train = ["bash", "launch/deepspeed.sh", str(desk.run_file), *place]
    passed = " ".join(sorted(set(desk.variables) - set(os.environ)))
    on_nodes(desk, desk.cluster.nodes[:1], train, HOSTFILE=str(hostfile), PASS=passed)
    assert TrainingJob(desk.cluster, desk.folder / "runs" / "pdsh", "0", desk.folder).losses == undisturbed.losses
