import os
from pathlib import Path

import pytest

from megatron_mep.doctor.nodes import clocks, nodes


@pytest.mark.parametrize(
    ("told", "level", "said"),
    [
        ("node1 1000.5\nnode2 1001.9\n", "ok", "2 nodes agree"),
        ("node1 1000.5\nnode2 1012.0\n", "warn", "node2 is off by 10.0 s"),
        ("node1 880.0\nnode2 1001.0\n", "red", "node1 is off by 120.0 s"),
        ("node1 1000.5\n", "red", "1 of 2 nodes answered: node1"),
    ],
)
def test_clocks_are_compared_with_this_host_s(told: str, level: str, said: str):
    found = clocks(told, 2, 1000.0, 1002.0)
    assert (found.level, found.told[: len(said)]) == (level, said)


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_NUM_NODES": "1"}, {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": "0"}]
)
def test_nothing_is_asked_outside_of_an_allocation_of_several_nodes(environ: dict[str, str]):
    assert list(nodes(environ)) == []


def test_each_node_of_an_allocation_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "node1 $(date +%s.%N)"\necho "node2 1000000000.0"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (found,) = nodes({"SLURM_JOB_NUM_NODES": "2"})
    assert (found.level, "--exclude=node2" in found.remedy) == ("red", True)
    srun.write_text("#!/bin/sh\nexit 1\n")
    (found,) = nodes({"SLURM_JOB_NUM_NODES": "2"})
    assert (found.level, "srun does not start" in found.told) == ("red", True)
