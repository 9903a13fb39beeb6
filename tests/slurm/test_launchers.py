"""Four ranks on two nodes, by each launcher, compute what one process does; what cannot work is never submitted."""

from pathlib import Path

import pytest

from tests.slurm.jobs import LAUNCHERS, ROOT, Desk, TrainingJob
from tests.support.tiny import LAYOUT_RTOL

QUICKSTART = ROOT / "configs" / "quickstart" / "mep.yaml"
SHORT = (
    "training.steps=6",
    "training.micro_batch_size=4",
    "training.global_batch_size=8",
    "training.schedule.warmup_steps=2",
    "logging.interval=1",
    "checkpoint.interval=3",
    "validation.interval=0",
)


def short(desk: Desk) -> tuple[str, ...]:
    """The quickstart's model on a small corpus, for a few steps."""
    return (*SHORT, f"data.folder={desk.folder / 'corpus'}")


@pytest.fixture(scope="module")
def on_one_machine(desk: Desk) -> TrainingJob:
    place = (f"runs={desk.folder / 'runs'}", "name=alone", "parallel.tensor=1")
    done = desk.mep("train", str(QUICKSTART), *short(desk), *place)
    assert done.returncode == 0, done.stdout + done.stderr
    return TrainingJob(desk.cluster, desk.folder / "runs" / "alone", "0", desk.folder)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_tensor_times_data_on_two_nodes_is_one_machine(desk: Desk, on_one_machine: TrainingJob, launcher: str):
    options = ("--launcher", launcher)
    job = desk.launch(f"four-{launcher}", *short(desk), run_file=QUICKSTART, options=options, ranks_per_node=2)
    job.wait_for_finish()
    assert job.attempts[0]["world_size"] == 4
    assert job.losses == pytest.approx(on_one_machine.losses, rel=LAYOUT_RTOL)


@pytest.mark.parametrize(
    ("key", "told", "changes"),
    [
        ("--nodes", "ask for --nodes 4", ["parallel.tensor=4"]),
        ("data.folder", "mep prepare", ["data.folder=/nowhere"]),
        ("runs", "share", ["runs=/proc/nowhere"]),
        ("--time", "checkpoint.interval", ["training.steps=100000000", "checkpoint.interval=100000000"]),
    ],
)
def test_what_cannot_work_is_not_submitted(desk: Desk, key: str, told: str, changes: list[str], tmp_path: Path):
    place = [f"runs={tmp_path}", "name=refused", "logging.peak_tflops=0.01"]
    profile = desk.profile("refusing")
    done = desk.mep("launch", str(desk.run_file), "--cluster", str(profile), "--nodes", "2", *place, *changes)
    assert done.returncode == 2
    assert key in done.stderr
    assert told in done.stderr
    assert desk.cluster.told("squeue", "--noheader") == ""
    assert list(tmp_path.iterdir()) == []
