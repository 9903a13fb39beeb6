"""Two layers learn to copy, and then find a passkey in texts four times as long as any that they were trained on."""

from pathlib import Path

import pytest

from megatron_mep.data.corpus import prepare
from megatron_mep.evaluation.rows import rows_of_kind
from megatron_mep.probe import probe
from megatron_mep.probes.rows import ProbeRow
from megatron_mep.run import load_run
from tests.data.toy import silent
from tests.end_to_end.job import describe_rank, train_on
from tests.support.distributed import run as run_ranks

FILE = Path(__file__).parents[2] / "configs" / "tasks" / "retrieval_copy.yaml"
STEPS = 1500
"""Fewer than the file's, for the sake of time: copying is learnt by then, though not yet as surely."""


@pytest.mark.slow
def test_a_model_that_learnt_to_copy_retrieves_at_four_times_its_length(tmp_path: Path):
    run = load_run(FILE, [f"runs={tmp_path}", f"data.folder={tmp_path / 'corpus'}", f"training.steps={STEPS}"])
    prepare(run.data, report=silent)
    train_on(1, run)
    length = 4 * run.training.seq_length
    run_ranks(_asked, 1, run.folder, tmp_path / "rows.jsonl", length)
    rows = rows_of_kind(tmp_path / "rows.jsonl", ProbeRow)
    assert [(row.task, row.length, row.oracle) for row in rows] == [("passkey", length, 100)] * 5
    # of a model that does not copy none is found
    assert sum(row.found or 0 for row in rows) / len(rows) > 30
    assert sum(row.exact or 0 for row in rows) / len(rows) > 30


def _asked(checkpoint: Path, to: Path, length: int) -> None:
    describe_rank()
    probe(checkpoint, [f"probes.retrieval.lengths=[{length}]"], to=to)
