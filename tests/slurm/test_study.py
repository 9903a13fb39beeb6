"""launch/study.sbatch: arms are trained and measured by tasks of arrays, of which one is stopped and goes on."""

import json
from pathlib import Path

import pytest
import yaml

from tests.slurm.deadly import ORDERS, PACE
from tests.slurm.jobs import START_S, Desk, TrainingJob

ARMS = ("other-seed1234", "deadly-seed1234")


def study_file(desk: Desk) -> Path:
    """Two encodings of the tiny run."""
    file = desk.folder / "study.yaml"
    tree = {
        "study": "arrays",
        "base": "tiny.yaml",
        "runs": str(desk.folder / "studies"),
        "baseline": "other",
        "seeds": [1234],
        # the second is slow where it is told to be
        "encodings": {"other": {"name": "alibi"}, "deadly": {"name": "tests.slurm.deadly:Deadly"}},
    }
    file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return file


@pytest.mark.slow
def test_an_array_trains_and_measures_all_arms_though_one_is_stopped(desk: Desk):
    study, orders = study_file(desk), desk.folder / "orders" / "study"
    orders.mkdir(parents=True)
    (orders / PACE).write_text("0.5")
    script = desk.edited("study.sbatch", {
        r"^#SBATCH --array=\S+": "#SBATCH --array=0-1%2",
        r"^STUDY=.*": f"STUDY={study}",
    })  # fmt: skip
    number = desk.submit(script, **{ORDERS: str(orders)})
    measured = desk.submit(script, f"--dependency=afterok:{number}", STAGE="evaluate")
    folders = [desk.folder / "studies" / "arrays" / arm for arm in ARMS]
    slow = TrainingJob(desk.cluster, folders[1], f"{number}_1", orders)
    slow.wait_for_step(6)
    desk.cluster.told("scancel", "--batch", "--signal=USR1", slow.number)
    slow.wait(lambda: slow.facts().get("Restarts") == "1", START_S, "the restart")
    slow.hurry()
    for place, folder in enumerate(folders):
        arm = TrainingJob(desk.cluster, folder, f"{measured}_{place}", orders)
        arm.wait_for_state("COMPLETED", "FAILED", "CANCELLED")
        assert arm.state == "COMPLETED", (desk.folder / "study.sbatch.log").read_text()[-6000:]
    assert [line["reason"] for line in slow.attempts if line["event"] == "end"] == ["SIGUSR1", "finished"]
    done = desk.mep("study", str(study), "--summary")
    assert done.returncode == 0, done.stderr
    summary = json.loads((desk.folder / "studies" / "arrays" / "summary.json").read_text())
    assert summary["missing"] == []
    assert {cell["encoding"] for cell in summary["cells"]} == {"other", "deadly"}
    # the arm that was stopped came to what it would have come to
    alone = desk.mep(
        "train", str(study.parent / "tiny.yaml"), f"runs={desk.folder / 'runs'}", "name=arm-alone", "seed=1234"
    )
    assert alone.returncode == 0, alone.stderr
    assert slow.losses == TrainingJob(desk.cluster, desk.folder / "runs" / "arm-alone", "0", orders).losses
