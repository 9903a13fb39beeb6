"""Comparisons: only rows of the same tokens stand together, and what is left out is told."""

import math
from typing import Any

import pytest

from megatron_mep.reporting.comparison import comparisons
from megatron_mep.reporting.rows import Row
from tests.reporting.example import as_read, curve, result

LAST_K: dict[str, Any] = {"protocol": "last-k", "last_k": 64, "stride": None}


def test_runs_that_scored_the_same_tokens_share_a_comparison() -> None:
    rows = curve("mep", {128: 31.0, 256: 29.0}) + curve("alibi", {128: 32.0, 512: 33.0})
    (comparison,) = comparisons(as_read(*rows))
    assert comparison.lengths == [128, 256, 512]
    assert [line.label for line in comparison.lines] == ["mep", "alibi"]
    assert comparison.notes == ()


def test_sliding_windows_are_compared_at_one_stride_with_the_training_length_as_control() -> None:
    sliding = [
        result("mep", length, perplexity, protocol="sliding", stride=stride)
        for stride in (16, 1)
        for length, perplexity in ((128, 31.0), (256, 29.0))
    ]
    first, second = comparisons(as_read(*sliding))
    assert (first.name, second.name) == ("Sliding windows", "Sliding windows")
    assert first.lines[0].cut[256].value == pytest.approx(31.0)
    assert second.notes == ("Not comparable with the first sliding table: stride 1, there 16.",)


@pytest.mark.parametrize(
    ("difference", "reason"),
    [
        ({"scored_hash": "6" * 64}, "other tokens were scored (4,096 with hash 666666666666"),
        ({"tokenizer_hash": "u" * 64}, "another tokenizer (uuuuuuuuuuuu, there tttttttttttt)"),
    ],
)
def test_other_tokens_and_other_tokenizers_stand_apart_and_say_why(difference: dict[str, Any], reason: str) -> None:
    first, second = comparisons(as_read(result("a", 128, 30.0), result("b", 128, 20.0, **difference)))
    assert [line.label for line in (*first.lines, *second.lines)] == ["a", "b"]
    assert first.notes == ()
    assert reason in second.notes[0]


def test_protocols_stand_apart_without_excuse() -> None:
    first, second = comparisons(as_read(result("a", 128, 30.0), result("a", 128, 28.0, **LAST_K)))
    assert (first.name, second.name) == ("Blocks", "Last 64 tokens")
    assert second.notes == ()


def test_the_newest_of_two_measurements_wins_and_it_says_so() -> None:
    newer, older = result("mep", 128, 29.0, minutes=5), result("mep", 128, 31.0)
    for rows in ([newer, older], [older, newer]):
        (comparison,) = comparisons(as_read(*rows))
        assert comparison.lines[0].full[128].value == pytest.approx(29.0)
        (note,) = comparison.notes
        assert note.startswith("mep, step 100, length 128, full context: measured 2 times")
        assert "the newest of 2025-01-01 00:05:00 UTC is shown" in note


def test_models_that_share_a_name_are_told_apart() -> None:
    rows = [result("mep", 128, 31.0), result("mep", 128, 30.0, step=200), result("alibi", 128, 30.0)]
    (comparison,) = comparisons(as_read(*rows))
    assert [line.label for line in comparison.lines] == ["mep, step 100", "mep, step 200", "alibi"]
    rows = [result("mep", 128, 31.0), result("mep", 128, 30.0, encoding_options={"width": 4.0})]
    (comparison,) = comparisons(as_read(*rows))
    assert [line.label for line in comparison.lines] == ["mep (1)", "mep (2)"]


def tricked(*tricks: dict[str, Any]) -> dict[str, Any]:
    return {"extrapolation": tricks}


YARN = {"name": "yarn", "factor": 4.0, "beta_fast": 32.0, "ramp": "pairs"}
LOG_N = {"name": "log_n"}


def test_length_tricks_have_lines_of_their_own() -> None:
    rows = curve("rope", {128: 31.0, 256: 60.0}) + curve("rope", {128: 31.5, 256: 31.0}, **tricked(YARN, LOG_N))
    (comparison,) = comparisons(as_read(*rows))
    assert [line.label for line in comparison.lines] == ["rope", "rope + yarn factor 4 + log_n"]
    assert [line.full[256].value for line in comparison.lines] == pytest.approx([60.0, 31.0])
    assert comparison.notes == (), "none replaces the other"


def test_tricks_are_told_apart_by_the_options_in_which_they_differ() -> None:
    window = {"name": "window", "size": None}
    tricks = (
        (YARN, "rope + yarn factor 4 beta_fast 32"),
        (YARN | {"beta_fast": 16.0}, "rope + yarn factor 4 beta_fast 16"),
        (YARN | {"factor": 8.0}, "rope + yarn factor 8 beta_fast 32"),
        (YARN | {"factor": 4.0000001}, "rope + yarn factor 4.0000001 beta_fast 32"),
        (window, "rope + window size none"),
        (window | {"size": 64}, "rope + window size 64"),
    )
    (comparison,) = comparisons(as_read(*(result("rope", 128, 31.0, **tricked(trick)) for trick, _ in tricks)))
    assert [line.label for line in comparison.lines] == [label for _, label in tricks]
    (alone,) = comparisons(as_read(result("rope", 128, 31.0, **tricked(window))))
    assert alone.lines[0].label == "rope + window"


def test_what_replaces_a_measurement_under_tricks_names_them() -> None:
    rows = [result("rope", 128, 31.0, minutes=minutes, **tricked(YARN)) for minutes in (0, 5)]
    (comparison,) = comparisons(as_read(*rows))
    assert comparison.notes[0].startswith("rope + yarn factor 4, step 100, length 128")


def test_rows_from_before_there_were_tricks_are_read() -> None:
    row = result("rope", 128, 31.0).model_dump(mode="json")
    del row["extrapolation"]
    assert Row.model_validate(row).extrapolation == ()


def test_the_control_is_the_full_row_up_to_the_training_length() -> None:
    (comparison,) = comparisons(as_read(*curve("mep", {64: 35.0, 128: 31.0, 256: 29.0}, cut=30.5)))
    (line,) = comparison.lines
    assert {length: round(row.value, 9) for length, row in line.cut.items()} == {64: 35.0, 128: 31.0, 256: 30.5}
    assert [row.length for row in line.measured] == [64, 128, 256, 256], "each row once"


def test_the_control_of_last_k_is_the_row_at_the_training_length() -> None:
    rows = [result("mep", length, value, **LAST_K) for length, value in ((128, 28.0), (256, 27.0), (512, 26.0))]
    (comparison,) = comparisons(as_read(*rows))
    assert [round(comparison.lines[0].cut[length].value, 9) for length in (128, 256, 512)] == [28.0, 28.0, 28.0]


def test_the_ratio_is_to_the_training_length() -> None:
    values = {128: 30.0, 256: 27.0, 512: math.inf, 1024: math.nan}
    (comparison,) = comparisons(as_read(*curve("mep", values)))
    (line,) = comparison.lines
    assert line.ratio(256) == pytest.approx(0.9)
    assert line.ratio(512) == math.inf
    assert math.isnan(line.ratio(1024))
    assert math.isnan(line.ratio(2048))


def test_of_validations_only_the_last_of_a_run_is_shown() -> None:
    rows = [result("mep", 128, 30.0, step=step, purpose="validation", checkpoint=None) for step in (10, 20, 30)]
    (comparison,) = comparisons(as_read(*rows))
    assert [line.model.step for line in comparison.lines] == [30]
    assert comparison.notes == ("2 validations during training before each run's last are not shown.",)
    assert comparison.name == "Validation"


def test_two_seeds_of_a_run_each_keep_their_last_validation() -> None:
    changes: dict[str, Any] = {"purpose": "validation", "checkpoint": None}
    rows = [result("mep", 128, 30.0, step=step, seed=seed, **changes) for seed, step in ((1, 10), (1, 20), (2, 10))]
    (comparison,) = comparisons(as_read(*rows))
    assert [(line.model.seed, line.model.step) for line in comparison.lines] == [(1, 20), (2, 10)]
