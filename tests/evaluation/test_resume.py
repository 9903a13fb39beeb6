"""A row is taken for a measurement only where it is of the same model, made in the same way, on the same tokens."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from megatron_mep.evaluation.config import EvaluationConfig
from megatron_mep.evaluation.plan import last_k, per_position, plans, span_ends
from megatron_mep.evaluation.resume import is_among, rows_of
from megatron_mep.evaluation.rows import ResultRow, append_rows
from megatron_mep.evaluation.suite import evaluate_lengths
from tests.evaluation.test_rows import FACTS
from tests.evaluation.toy import score, stream_of

STREAM = stream_of(101)
TRAIN_LENGTH = 6
CONFIG = EvaluationConfig(
    lengths=(6, 12, 24), tokens=48, last_k=3, spans=5, protocols=("blocks", "last-k"), batch_tokens=24
)
CHECKPOINT = datetime(2030, 1, 1, tzinfo=UTC)
PLANS = plans(CONFIG.resolved(TRAIN_LENGTH), len(STREAM))


def rows(**changes: Any) -> list[ResultRow]:
    facts = FACTS.model_copy(update=changes)
    created = CHECKPOINT + timedelta(minutes=1)
    return [ResultRow.of(facts, row, created) for row in evaluate_lengths(score, STREAM, CONFIG, TRAIN_LENGTH)]


def known(path: Path) -> list[ResultRow]:
    return rows_of(path, ResultRow, FACTS, CHECKPOINT)


def test_what_a_file_holds_is_done_and_the_rest_is_measured(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, rows()[:3])
    path.write_bytes(path.read_bytes() + b'{"protocol": "blo')
    assert [is_among(known(path), plan, STREAM) for plan in PLANS] == [True] * 3 + [False] * (len(PLANS) - 3)
    found = known(path)
    left = evaluate_lengths(score, STREAM, CONFIG, TRAIN_LENGTH, is_done=lambda plan: is_among(found, plan, STREAM))
    assert [(row.protocol, row.length) for row in left] == [(plan.protocol, plan.length) for plan in PLANS[3:]]


@pytest.mark.parametrize(
    ("changes", "is_known"),
    [
        ({"tensor_parallel": 4, "context_parallel": 8, "num_parameters": 1_000_384}, True),
        ({"checkpoint": "runs/mep/checkpoints/step_200"}, False),
        ({"extrapolation": ({"name": "log_n"},)}, False),
        ({"attention_epsilon": 1e-3}, False),
        ({"corpus_fingerprint": "d" * 64}, False),
        ({"version": "0.2.0"}, False),
    ],
)
def test_only_the_layout_may_differ(tmp_path: Path, changes: dict[str, Any], is_known: bool):
    path = tmp_path / "rows.jsonl"
    append_rows(path, rows(**changes))
    assert bool(known(path)) is is_known


def test_rows_from_before_the_checkpoint_was_written_are_of_another(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, rows())
    assert rows_of(path, ResultRow, FACTS, CHECKPOINT + timedelta(hours=1)) == []
    assert rows_of(tmp_path / "no.jsonl", ResultRow, FACTS, CHECKPOINT) == []


def test_other_tokens_and_other_ranges_of_positions_are_other_measurements():
    made = rows()
    assert is_among(made, last_k(12, span_ends(24, 3, 5, 101), 3), STREAM)
    assert not is_among(made, last_k(12, span_ends(24, 3, 4, 101), 3), STREAM)
    assert not is_among(made, PLANS[0], stream_of(102)[1:])
    assert not is_among(made, per_position(12, 48, 4), STREAM)
