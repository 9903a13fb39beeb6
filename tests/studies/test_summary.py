"""The summary: means, spreads and paired differences against sums by hand; what chance explains is said to be so."""

import csv
import math
import statistics

import numpy as np
import pytest

from megatron_mep.studies.state import rows_of
from megatron_mep.studies.summary import Cell, Summary, summary_of
from megatron_mep.studies.tables import as_csv, as_markdown
from tests.studies.example import NUM_DOCUMENTS, leave_rows, study_of


def summary(folder, losses: dict[str, tuple[float, float]], spread: dict[str, float] | None = None) -> Summary:
    """Of the loss of each arm at both lengths alike, by encoding, for seeds 1 and 2."""
    study = study_of(folder, encodings={label: {"name": label} for label in losses})
    for arm in study.arms:
        leave_rows(arm, losses[arm.encoding][arm.run.seed - 1], spread=(spread or {}).get(arm.encoding, 0.0))
    return summary_of(study, {arm.name: rows_of(arm) for arm in study.arms}, [])


def cell(of: Summary, encoding: str) -> Cell:
    return next(each for each in of.cells if (each.encoding, each.length) == (encoding, 32))


def test_mean_and_spread_are_over_seeds(tmp_path):
    found = cell(summary(tmp_path, {"alibi": (2.0, 2.2), "mep": (1.9, 2.1)}), "mep")
    perplexities = [math.exp(1.9), math.exp(2.1)]
    assert found.perplexities == pytest.approx(perplexities, rel=1e-12)
    assert found.mean == pytest.approx(statistics.fmean(perplexities), rel=1e-12)
    assert found.deviation == pytest.approx(statistics.stdev(perplexities), rel=1e-12)


def test_a_difference_that_every_seed_and_document_shares_is_significant(tmp_path):
    told = cell(summary(tmp_path, {"alibi": (2.0, 2.2), "mep": (1.9, 2.1)}), "mep").against_baseline
    assert told.mean == pytest.approx(-0.1, abs=1e-12)
    assert (told.low, told.high) == pytest.approx((-0.1, -0.1), abs=1e-12), "seeds differ by 0.2, which pairing removes"
    assert told.significant
    assert (told.num_seeds, told.num_documents) == (2, NUM_DOCUMENTS)


def test_seeds_that_disagree_are_not_significant(tmp_path):
    told = cell(summary(tmp_path, {"alibi": (2.0, 2.0), "mep": (1.9, 2.05)}), "mep").against_baseline
    assert told.mean == pytest.approx(-0.025, abs=1e-12)
    assert (told.low, told.high) == pytest.approx((-0.1, 0.05), abs=1e-12)
    assert not told.significant


def test_documents_that_disagree_are_not_significant(tmp_path):
    told = cell(summary(tmp_path, {"alibi": (2.0, 2.0), "mep": (1.95, 1.95)}, {"mep": 0.5}), "mep").against_baseline
    assert told.mean == pytest.approx(-0.05, abs=1e-12)
    errors = 0.5 * np.linspace(-1, 1, NUM_DOCUMENTS)
    # of a mean over documents drawn with replacement
    deviation = errors.std() / math.sqrt(NUM_DOCUMENTS)
    assert told.high - told.low == pytest.approx(2 * 1.96 * deviation, rel=0.05)
    assert not told.significant


def test_many_comparisons_ask_for_more(tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    few.mkdir(), many.mkdir()
    losses = {"alibi": (2.0, 2.0), "mep": (1.75, 1.75)}
    others = dict.fromkeys(("nope", "rope", "t5", "fox", "cable", "hope", "sandwich", "kerple_log"), (2.0, 2.0))
    spread = {"mep": 0.5}
    assert cell(summary(few, losses, spread), "mep").against_baseline.significant
    strict = cell(summary(many, losses | others, spread), "mep").against_baseline
    assert strict.high < 0, "the interval alone does not hold 0"
    assert not strict.significant


def test_the_baseline_is_compared_with_nothing_and_itself_is_no_difference(tmp_path):
    told = summary(tmp_path, {"alibi": (2.0, 2.0), "mep": (2.0, 2.0)})
    assert cell(told, "alibi").against_baseline is None
    assert not cell(told, "mep").against_baseline.significant


def test_only_seeds_of_both_are_paired(tmp_path):
    study = study_of(tmp_path)
    for arm in study.arms:
        leave_rows(arm, 2.0 + arm.run.seed)
    rows = {arm.name: rows_of(arm) for arm in study.arms if arm.name != "alibi-seed2"}
    told = cell(summary_of(study, rows, ["alibi-seed2"]), "mep")
    assert told.seeds == (1, 2)
    assert told.against_baseline.num_seeds == 1
    assert told.against_baseline.mean == 0


def test_the_table_says_what_is_not_significant_and_what_seeds_are_worth(tmp_path):
    told = summary(tmp_path, {"alibi": (2.0, 2.0), "mep": (1.9, 2.05), "nope": (2.5, 2.5)})
    text = as_markdown(told)
    assert "* mep: not significantly different from alibi at 16, 32." in text
    assert "* nope: not significantly" not in text
    assert "2 seeds tell little" in text
    assert f"| {math.exp(2.0):.4g} ± 0 |" in text
    assert "-0.025 [-0.100, +0.050] n.s. |" in text


def test_an_incomplete_study_is_told_to_be_so(tmp_path):
    told = summary(tmp_path, {"alibi": (2.0, 2.0), "mep": (2.0, 2.0)})
    assert "Not complete" not in as_markdown(told)
    assert "**Not complete**: without mep-seed2." in as_markdown(told.model_copy(update={"missing": ("mep-seed2",)}))


def test_a_program_reads_every_cell(tmp_path):
    told = summary(tmp_path, {"alibi": (2.0, 2.2), "mep": (1.9, 2.1)})
    records = list(csv.DictReader(as_csv(told).splitlines()))
    assert len(records) == len(told.cells) == 6, "two encodings at 16, 32 and 32 cut"
    of_mep = next(each for each in records if (each["encoding"], each["length"]) == ("mep", "32"))
    assert float(of_mep["mean"]) == cell(told, "mep").mean
    assert of_mep["significant"] == "True"
    assert Summary.model_validate_json(told.model_dump_json()) == told
