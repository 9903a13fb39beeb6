"""Sources: what a results file or a run folder brings into a report, and what is said where there is nothing."""

import json
from pathlib import Path

import pytest

from megatron_mep.checkpoint.written_by import Writer
from megatron_mep.config.errors import DataError
from megatron_mep.reporting.report import write_report
from megatron_mep.reporting.rows import AnalysisRow, ProbeRow, Row
from megatron_mep.reporting.sources import read_sources
from tests.reporting.example import curve, result, run_folder, whole_run


def test_a_results_file_brings_its_run_folder_along_and_no_file_is_read_twice(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "mep", curve("mep", {128: 31.0, 256: 29.0}))
    for results in ([folder], [folder / "evaluation" / "lengths.jsonl"], [folder, folder]):
        sources = read_sources(results)
        assert [record.row.length for record in sources.records] == [128, 256, 256]
        assert sources.settings == {"mep": (folder / "run.yaml").read_text()}
        assert [point.step for point in sources.metrics["mep"]] == list(range(1, 30))
        assert [read.path.name for read in sources.files] == ["lengths.jsonl", "metrics.jsonl", "run.yaml"]


def test_two_folders_of_one_run_name_keep_both_settings(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / name, [result("mep", 128, 30.0)]) for name in "ab"]
    sources = read_sources(folders)
    assert list(sources.settings) == list(sources.metrics) == ["mep", f"mep ({folders[1]})"]


def test_a_folder_of_several_runs_lends_its_settings_its_own_name(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "study", [result("a", 128, 30.0), result("b", 128, 30.0)])
    assert list(read_sources([folder]).settings) == ["study"]


def test_a_run_folder_brings_rows_of_every_kind_and_validations(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "mep", "mep")
    sources = read_sources([folder])
    counts = [len(sources.rows(kind)) for kind in (Row, ProbeRow, AnalysisRow)]
    assert counts == [6, 8, 1]
    assert [row.step for row in sources.validations["mep"]] == [50, 100]
    assert sources.writers == {}, "no checkpoint is there that would tell"


def test_the_checkpoint_that_was_measured_last_is_named(tmp_path: Path) -> None:
    rows = [result("mep", 128, 30.0, step=step) for step in (100, 50)]
    folder = run_folder(tmp_path / "mep", [*rows, result("mep", 128, 30.0, step=150, checkpoint=None)])
    assert read_sources([folder]).checkpoints == {"mep": folder / "checkpoints" / "step_00000100"}
    several = run_folder(tmp_path / "study", [result(run, 128, 30.0) for run in "ab"])
    assert read_sources([several]).checkpoints == {}, "whose it would be is not known"


def test_checkpoints_tell_by_what_they_were_written_one_after_the_other(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "mep", [result("mep", 128, 30.0)])
    old = {"versions": {"torch": "2.12.0"}}
    new = {"versions": {"torch": "2.13.0"}, "commit": {"sha": "12ab", "changed": True}}
    for step, facts in enumerate((old, old, new, new)):
        written_by = folder / "checkpoints" / f"step_{step:08d}" / "written_by.json"
        written_by.parent.mkdir(parents=True)
        written_by.write_text(json.dumps(facts))
    # what somebody left beside them is no checkpoint
    other = folder / "checkpoints" / "copy" / "written_by.json"
    other.parent.mkdir()
    other.write_text("{")
    assert read_sources([folder]).writers == {"mep": [Writer.of(old), Writer.of(new)]}
    write_report([folder], tmp_path / "out", "writers")
    told = "mep was trained by torch 2.12.0, commit unknown; then by torch 2.13.0, commit 12ab with changes."
    assert told in (tmp_path / "out" / "index.html").read_text()


def test_the_folder_of_a_study_stands_for_those_arms_that_are_measured(tmp_path: Path) -> None:
    for arm in ("b", "a"):
        run_folder(tmp_path / arm, [result(arm, 128, 30.0)])
    begun = tmp_path / "c"
    begun.mkdir()
    (begun / "run.yaml").write_text("name: c\n")
    sources = read_sources([tmp_path])
    assert [row.run for row in sources.rows(Row)] == ["a", "b"]
    assert list(sources.settings) == ["a", "b"]


def test_what_is_not_there_is_said_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as caught:
        read_sources([tmp_path / "empty", tmp_path / "absent"])
    assert [mistake.key for mistake in caught.value.mistakes] == [str(tmp_path / "empty"), str(tmp_path / "absent")]


def test_files_without_a_row_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(DataError, match="at least one result row"):
        read_sources([tmp_path / "rows.jsonl"])
