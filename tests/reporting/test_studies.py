"""A study's summary in a report: means over seeds with what tells them from the baseline."""

import math
from pathlib import Path

import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.reporting.charts import styles
from megatron_mep.reporting.records import read_summary
from megatron_mep.reporting.sources import read_sources
from megatron_mep.reporting.studies import study_chart, study_grid
from tests.reporting.example import result, run_folder, summary_file


def test_a_table_has_means_with_spread_and_differences_to_the_baseline(tmp_path: Path) -> None:
    summary, _ = read_summary(summary_file(tmp_path))
    ((way, cells),) = summary.ways()
    assert way == "trained at 128, blocks"
    grid = study_grid(summary, way, cells)
    assert [(row.head, row.cells) for row in grid.rows] == [
        ("alibi", ("31.00 ± 0.5", "not finite")),
        ("mep", ("28.00 ± 0.5", "27.00 ± 0.5")),
        ("less alibi", ("-0.100", "+0.010 n.s.")),
    ]


def test_a_figure_has_a_curve_for_each_encoding(tmp_path: Path) -> None:
    summary, _ = read_summary(summary_file(tmp_path))
    ((way, cells),) = summary.ways()
    alibi, mep = study_chart(way, cells, styles({"alibi": 1, "mep": 2}), "study").curves
    assert [(point.x, point.y) for point in mep.points] == [(128, 28.0), (256, 27.0)]
    assert mep.points[0].told == "± 0.5 over seeds\nto the baseline -0.100 nats [-0.200, -0.050]"
    assert math.isnan(alibi.points[1].y)


def test_what_is_missing_and_few_seeds_are_told(tmp_path: Path) -> None:
    summary, _ = read_summary(summary_file(tmp_path))
    assert summary.notes == [
        "Not complete: without rope-seed1.",
        "2 seeds tell little of what training by another seed would give.",
    ]


def test_the_folder_of_a_study_brings_its_summary(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", [result("a", 128, 30.0)])
    file = summary_file(tmp_path)
    sources = read_sources([tmp_path])
    assert [study.study for study in sources.studies] == ["small"]
    assert file in [read.path for read in sources.files]


def test_a_summary_of_another_format_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"study": "small"}')
    with pytest.raises(DataError, match=r"must be the summary of a study \(baseline: Field required"):
        read_summary(tmp_path / "summary.json")
