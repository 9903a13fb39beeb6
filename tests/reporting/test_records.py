"""Reading: what an evaluation writes is read, broken lines are named, and no torch is needed for it."""

import json
import math
import sys
from pathlib import Path
from subprocess import run

import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.evaluation.rows import ResultRow, append_rows
from megatron_mep.reporting.records import read_metrics, read_rows
from megatron_mep.reporting.rows import AnalysisRow, ProbeRow, Row
from tests.reporting.example import analysis, as_read, exercise, probe, result


def test_a_report_reads_the_fields_that_an_evaluation_writes(tmp_path: Path) -> None:
    assert set(Row.model_fields) <= set(ResultRow.model_fields)
    written = result("mep", 256, 31.25)
    append_rows(tmp_path / "rows.jsonl", [written])
    (record,), read = read_rows(tmp_path / "rows.jsonl")
    for name in Row.model_fields:
        assert getattr(record.row, name) == getattr(written, name), name
    assert read.num_records == 1


def test_a_field_of_a_later_writer_does_no_harm(tmp_path: Path) -> None:
    line = json.loads(result("mep", 256, 31.25).model_dump_json()) | {"later": 1}
    (tmp_path / "rows.jsonl").write_text(json.dumps(line) + "\n")
    (record,), _ = read_rows(tmp_path / "rows.jsonl")
    assert json.loads(record.line) == line, "the line is kept whole"


def test_a_file_may_hold_rows_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [result("mep", 256, 31.25), probe("mep", 256, 50.0), exercise("mep", 10, 90.0)])
    path.write_text(f"{path.read_text()}{json.dumps(analysis('mep', 256))}\n")
    records, _ = read_rows(path)
    assert [type(record.row) for record in records] == [Row, ProbeRow, ProbeRow, AnalysisRow]


def test_rows_of_another_format_are_refused_with_the_reason(tmp_path: Path) -> None:
    line = json.loads(result("mep", 256, 31.25).model_dump_json())
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(line | {'schema_version': 2})}\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:1: must be a row of schema_version 1, .* not 2"):
        read_rows(tmp_path / "rows.jsonl")


def test_rows_of_an_older_writer_are_read(tmp_path: Path) -> None:
    line = json.loads(result("mep", 256, 31.25).model_dump_json())
    later = ("extrapolation", "attention_epsilon", "context_parallel", "pipeline_parallel", "document_tokens",
             "document_nll", "perplexity_low", "perplexity_high", "position_ends", "position_nll", "attention_kept",
             "attention_dropped")  # fmt: skip
    (tmp_path / "rows.jsonl").write_text(json.dumps({name: line[name] for name in line if name not in later}))
    ((record,), _) = read_rows(tmp_path / "rows.jsonl")
    assert isinstance(record.row, Row)
    assert record.row.position_nll is None


def test_infinite_and_not_finite_are_told_apart() -> None:
    infinite, broken = as_read(result("mep", 256, math.inf), result("mep", 256, math.nan))
    assert infinite.value == math.inf
    assert math.isnan(broken.value)


def test_broken_lines_are_named_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = result("mep", 256, 31.25).model_dump_json()
    path.write_text("\n".join([good, good[:50], good.replace('"run":"mep",', ""), "[]"]))
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert [mistake.key for mistake in caught.value.mistakes] == [f"{path}:2", f"{path}:3", f"{path}:4"]
    assert "run: Field required" in caught.value.mistakes[1].rule


def test_metrics_need_no_more_than_step_and_tokens(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "consumed_tokens": 64, "loss": NaN, "grad_norm": 1.0}\n{"step": 2}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: must be a training record \(consumed_tokens"):
        read_metrics(path)


def test_a_report_imports_neither_torch_nor_the_parts_that_measure() -> None:
    program = (
        "import sys, megatron_mep.reporting.report as _; "
        "ours = {name.split('.')[1] for name in sys.modules if name.startswith('megatron_mep.')}; "
        "assert 'torch' not in sys.modules and ours == {'checkpoint', 'commit', 'config', 'reporting'}, ours; "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    run([sys.executable, "-c", program], check=True)
