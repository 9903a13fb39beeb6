"""Result files: rows come back as they went, whole lines only, and a broken line is named."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from megatron_mep.config.errors import DataError
from megatron_mep.evaluation.rows import Measurement, ModelFacts, ResultRow, append_rows, perplexity_of, read_rows

FACTS = ModelFacts(
    run="mep <small>",
    purpose="evaluation",
    encoding="mep",
    encoding_options={"kernels": [{"kernel": "exponential", "width": 1.0}]},
    checkpoint="runs/mep/checkpoints/step_100",
    step=100,
    consumed_tokens=409_600,
    num_parameters=1_000_000,
    train_length=128,
    seed=1,
    tokenizer_hash="t" * 64,
    corpus_fingerprint="c" * 64,
    precision="fp32",
    attention_backend="toeplitz",
    tensor_parallel=2,
    data_parallel=1,
    version="0.1.0",
)


def measurement(nll: float | None, perplexity: float | None, non_finite: int = 0) -> Measurement:
    return Measurement(
        protocol="blocks",
        length=256,
        context="full",
        window=256,
        stride=256,
        last_k=None,
        scored_tokens=1024,
        scored_hash="s" * 64,
        scored_bytes=4000,
        nll=nll,
        perplexity=perplexity,
        bits_per_byte=None if nll is None else nll,
        non_finite=non_finite,
        seconds=1.5,
        tokens_per_s=682.6666666666666,
    )


def row(nll: float | None = 0.1, non_finite: int = 0) -> ResultRow:
    perplexity = None if nll is None else perplexity_of(nll)
    return ResultRow.of(FACTS, measurement(nll, perplexity, non_finite), datetime.now(UTC))


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    path = tmp_path / "evaluation" / "blocks.jsonl"
    rows = [row(0.1 + 0.2), row(1e4), row(None, non_finite=3)]
    append_rows(path, rows[:1])
    append_rows(path, rows[1:])
    assert read_rows(path) == rows


def test_a_file_is_strict_json_and_an_overflow_is_null(tmp_path: Path) -> None:
    append_rows(tmp_path / "rows.jsonl", [row(1e4), row(None, non_finite=3)])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    overflow, broken = (json.loads(line, parse_constant=refuse) for line in lines)
    assert (overflow["nll"], overflow["perplexity"], overflow["non_finite"]) == (1e4, None, 0)
    assert (broken["nll"], broken["perplexity"], broken["non_finite"]) == (None, None, 3)
    assert overflow["schema_version"] == 1


def test_perplexity_overflows_to_none_and_not_before() -> None:
    assert perplexity_of(709.0) == pytest.approx(8.218407461554972e307, rel=1e-12)
    assert perplexity_of(710.0) is None


@pytest.mark.parametrize(
    ("nll", "perplexity", "non_finite"), [(1.0, 2.7, 0), (1.0, None, 0), (None, None, 0), (1.0, 2.718281828459045, 1)]
)
def test_a_row_that_contradicts_itself_is_refused(nll: float, perplexity: float, non_finite: int) -> None:
    with pytest.raises(ValidationError):
        measurement(nll, perplexity, non_finite)


def test_creation_carries_its_time_zone() -> None:
    with pytest.raises(ValidationError, match="timezone"):
        ResultRow.of(FACTS, measurement(None, None, 1), datetime(2025, 1, 1))
    assert row().created.utcoffset() == timedelta(0)


def test_broken_lines_are_named_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = row().model_dump_json()
    later_schema = good.replace('"schema_version":1', '"schema_version":2')
    path.write_text("\n".join([good, good[:40], good, "", later_schema]) + "\n")
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert [mistake.key for mistake in caught.value.mistakes] == [f"{path}:2", f"{path}:4", f"{path}:5"]
    assert "schema_version" in caught.value.mistakes[-1].rule


def test_a_line_torn_by_a_killed_writer_spoils_no_later_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row().model_dump_json()[:40])
    later = row()
    append_rows(path, [later])
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert [mistake.key for mistake in caught.value.mistakes] == [f"{path}:1"]
    path.write_text(path.read_text().split("\n", 1)[1])
    assert read_rows(path) == [later]
