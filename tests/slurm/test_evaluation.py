"""launch/evaluate.sbatch: a checkpoint is measured by all ranks of several nodes, length after length over its ends."""

from pathlib import Path

import pytest

from megatron_mep.evaluation.rows import read_rows
from tests.slurm.deadly import ORDERS, PACE
from tests.slurm.jobs import START_S, Desk, TrainingJob

LENGTHS = "64,128,256"


def script(desk: Desk, run: Path, rows: Path) -> Path:
    changes = {
        r"^RUN_FOLDER=.*": f"RUN_FOLDER={run}",
        r"^ROWS=.*": f"ROWS={rows}",
        r"--lengths \S+": f"--lengths {LENGTHS}",
        r"parallel.context=\d+": "parallel.context=2",
    }
    return desk.edited("evaluate.sbatch", changes)


def test_an_evaluation_goes_on_where_it_was_stopped(desk: Desk, undisturbed: TrainingJob, tmp_path: Path):
    rows, orders = desk.folder / "long.jsonl", desk.folder / "orders" / "evaluation"
    orders.mkdir(parents=True)
    (orders / PACE).write_text("0.5")
    number = desk.submit(script(desk, undisturbed.folder, rows), **{ORDERS: str(orders)})
    job = TrainingJob(desk.cluster, undisturbed.folder, number, orders)
    job.wait(rows.exists, START_S, "the first row")
    desk.cluster.told("scancel", "--batch", "--signal=USR1", job.number)
    job.wait(lambda: job.facts().get("Restarts") == "1", START_S, "the restart")
    job.hurry()
    job.wait_for_state("COMPLETED", "FAILED")
    log = (desk.folder / "evaluate.sbatch.log").read_text()
    assert job.state == "COMPLETED", log[-6000:]
    assert "is in" in log
    done = desk.mep("evaluate", str(undisturbed.folder), "--to", str(tmp_path / "alone.jsonl"))
    assert done.returncode == 0, done.stdout + done.stderr
    found, expected = read_rows(rows), read_rows(tmp_path / "alone.jsonl")
    assert {row.context_parallel for row in found} == {2}
    # each once, in the order of one process
    assert [(row.protocol, row.length, row.context, row.scored_hash) for row in found] == [
        (row.protocol, row.length, row.context, row.scored_hash) for row in expected
    ]
    assert [row.nll for row in found] == pytest.approx([row.nll for row in expected], rel=1e-5)
