"""launch/deepspeed.sh: ranks on machines of a hostfile, started again within bounds; deepspeed itself is a stub."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "launch" / "deepspeed.sh"
STUBS = {
    "mep": 'printf "name: tiny\\nruns: runs\\nmodel:\\n  encoding:\\n    name: mep\\n"',
    "ssh": 'case "$*" in *"$SILENT"*) exit 255 ;; esac',
    "deepspeed": 'echo "$*" >>asked; [ -z "${DS_ENV_FILE:-}" ] || cat "$DS_ENV_FILE" >passed; eval "$RANKS"',
}
SAVE = "mkdir -p runs/tiny/checkpoints; date +%N >runs/tiny/checkpoints/latest; "
FINISH = "mkdir -p runs/tiny; touch runs/tiny/finished.json; "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        file.chmod(0o755)
    (tmp_path / "hosts").write_text("# machines\nnode1 slots=2\nnode2 slots=2\n", encoding="utf-8")
    return tmp_path


def launched(folder: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "HOSTFILE": "hosts",
        "SILENT": "nobody",
        **variables,
    }
    return subprocess.run(["bash", SCRIPT, "my_run.yaml", *overrides], env=environment, cwd=folder, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text(encoding="utf-8").splitlines()


def test_machines_are_reached_by_ssh_and_told_of_variables(folder: Path):
    done = launched(folder, "training.steps=3", RANKS=FINISH, OMP_NUM_THREADS="4", PASS="MINE", MINE="a,b c")
    assert done.returncode == 0, done.stderr
    assert asked(folder) == [
        "--hostfile hosts --master_addr node1 --master_port 29400 --no_local_rank "
        "--module megatron_mep train my_run.yaml training.steps=3"
    ]
    passed = (folder / "passed").read_text(encoding="utf-8").splitlines()
    assert {"OMP_NUM_THREADS=4", "MINE=a,b c"} <= set(passed)
    assert [file.name for file in folder.glob(".deepspeed_env*")] == []


def test_a_machine_may_know_its_own_place_instead(folder: Path):
    assert launched(folder, NODE_RANK="1", RANKS=FINISH, SILENT="node").returncode == 0
    assert "--no_ssh --node_rank 1 --module megatron_mep" in asked(folder)[0]


def test_machines_that_do_not_answer_are_named(folder: Path):
    done = launched(folder, SILENT="node2")
    assert done.returncode == 2
    assert done.stderr == "no ssh without a password to: node2\n"
    assert not (folder / "asked").exists()


def test_ranks_that_saved_or_crashed_are_started_again(folder: Path):
    ranks = SAVE + "case $(wc -l <asked) in 1) exit 75 ;; 2) exit 137 ;; esac; " + FINISH
    assert launched(folder, RANKS=ranks).returncode == 0
    assert len(asked(folder)) == 3


def test_starts_without_a_newer_checkpoint_are_bounded(folder: Path):
    done = launched(folder, RANKS="exit 7", MAX_STARTS="2")
    assert done.returncode == 7
    assert len(asked(folder)) == 2
    assert done.stdout.splitlines()[-1] == "gives up with 7"


@pytest.mark.parametrize("code", [2, 3])
def test_what_would_come_again_is_the_end(folder: Path, code: int):
    assert launched(folder, RANKS=f"exit {code}").returncode == code
    assert len(asked(folder)) == 1


def test_a_stop_file_is_the_end(folder: Path):
    assert launched(folder, RANKS=SAVE + "touch runs/tiny/STOP; exit 75").returncode == 0
    assert len(asked(folder)) == 1


def test_a_hostfile_that_is_not_there(folder: Path):
    done = launched(folder, HOSTFILE="absent")
    assert (done.returncode, done.stderr) == (2, "absent cannot be read\n")
