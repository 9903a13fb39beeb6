"""Rows of analyses in a file."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from megatron_mep.analysis.rows import Analysis, AnalysisRow
from megatron_mep.evaluation.rows import append_rows, rows_of_kind
from tests.analysis.test_lengths import WEIGHTS, looked
from tests.analysis.toy import windowed
from tests.evaluation.test_rows import FACTS


def test_rows_come_back_from_a_file(tmp_path: Path):
    rows = [AnalysisRow.of(FACTS, analysis, datetime.now(UTC)) for analysis in looked(windowed(WEIGHTS))]
    append_rows(tmp_path / "rows.jsonl", rows)
    assert rows_of_kind(tmp_path / "rows.jsonl", AnalysisRow) == rows


def test_attention_must_add_up():
    found = looked(windowed(WEIGHTS))[0].model_dump()
    head = (0.5, *found["attention_mass"][0][0][1:])
    with pytest.raises(ValidationError, match="attention_mass of a head must add up to 1"):
        Analysis.model_validate({**found, "attention_mass": ((head,),)})
