"""launch/evaluate.sbatch: a checkpoint is measured by all ranks of several nodes, length after length over its ends."""

import re
import sys
from pathlib import Path

import pytest

from megatron_mep.evaluation.rows import read_rows
from tests.slurm.deadly import ORDERS, PACE
from tests.slurm.jobs import ROOT, START_S, Desk, TrainingJob

LENGTHS = "64,128,256"


def edited(desk: Desk, run: Path, rows: Path) -> Path:
    """The script after the lines that its user is to change."""
    text = (ROOT / "launch" / "evaluate.sbatch").read_text(encoding="utf-8")
    changes = {
        r"^#SBATCH --ntasks-per-node=\S+": "#SBATCH --ntasks-per-node=1",
        r"^#SBATCH --(gpus-per-node|cpus-per-task)=.*\n": "",
        r"^#SBATCH --time=\S+": "#SBATCH --time=10",
        r"^#SBATCH --signal=B:USR1@\S+": "#SBATCH --signal=B:USR1@60",
        r"^#SBATCH --output=\S+": f"#SBATCH --output={desk.folder}/evaluation.log\n#SBATCH --chdir={ROOT}",
        r"^RUN_FOLDER=.*": f"RUN_FOLDER={run}",
        r"^ROWS=.*": f"ROWS={rows}",
        r"--lengths \S+": f"--lengths {LENGTHS}",
        r"parallel.context=\d+": "parallel.context=2",
        r"RANKS_PER_NODE=\d+": "RANKS_PER_NODE=1",
        r"^PYTHON=.*": f"PYTHON={sys.executable}",
        r"^NODE_CHECK='[^']*'": "NODE_CHECK=true",
        r"^SIGNAL_AHEAD_S=\d+": "SIGNAL_AHEAD_S=60",
    }
    for pattern, put in changes.items():
        text, times = re.subn(pattern, put.replace("\\", r"\\"), text, flags=re.MULTILINE)
        assert times, f"launch/evaluate.sbatch has no line {pattern}"
    script = desk.folder / "evaluate.sbatch"
    script.write_text(text, encoding="utf-8")
    return script


def test_an_evaluation_goes_on_where_it_was_stopped(desk: Desk, undisturbed: TrainingJob, tmp_path: Path):
    rows, orders = desk.folder / "long.jsonl", desk.folder / "orders" / "evaluation"
    orders.mkdir(parents=True)
    (orders / PACE).write_text("0.5")
    script = edited(desk, undisturbed.folder, rows)
    submitted = desk.cluster.call("sbatch", "--parsable", str(script), **desk.variables, **{ORDERS: str(orders)})
    job = TrainingJob(desk.cluster, undisturbed.folder, submitted.stdout.strip(), orders)
    job.wait(rows.exists, START_S, "the first row")
    desk.cluster.told("scancel", "--batch", "--signal=USR1", job.number)
    job.wait(lambda: job.facts().get("Restarts") == "1", START_S, "the restart")
    job.hurry()
    job.wait_for_state("COMPLETED", "FAILED")
    log = (desk.folder / "evaluation.log").read_text()
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
