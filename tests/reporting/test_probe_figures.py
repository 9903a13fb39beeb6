"""Figures of probes and of what models use, as data."""

import math

import pytest

from megatron_mep.probes.rows import ProbeRow as Written
from megatron_mep.reporting.charts import Chart, HeatMap, styles
from megatron_mep.reporting.probe_figures import Task, probe_figures, tasks_of
from megatron_mep.reporting.rows import AnalysisRow, ProbeRow
from megatron_mep.reporting.tables import receptive_field_grid
from megatron_mep.reporting.use_figures import analyses_by_length, attention_map, longest, receptive_field_chart
from tests.reporting.example import analysis, exercise, probe

STYLE = styles({"mep": "mep", "rope": "rope"})


def tasks(*rows: Written) -> list[Task]:
    return tasks_of([ProbeRow.model_validate_json(row.model_dump_json()) for row in rows])


def test_a_report_reads_the_fields_that_a_probe_writes() -> None:
    assert set(ProbeRow.model_fields) <= set(Written.model_fields)


def test_a_heat_map_has_lengths_across_and_depths_down_with_gaps_for_what_was_not_asked() -> None:
    rows = [probe("mep", 128, 100.0, depth=0.0), probe("mep", 128, 75.0, depth=1.0), probe("mep", 256, 50.0, depth=1.0)]
    (task,) = tasks(*rows)
    (drawn,) = probe_figures(1, task, STYLE)
    assert isinstance(drawn, HeatMap)
    assert (list(drawn.columns), list(drawn.rows)) == (["128", "256"], ["0%", "100%"])
    assert drawn.cells == [[100.0, None], [75.0, 50.0]]
    assert "found in greedy text 75 %" in drawn.told[1][0]
    assert "predicted exactly 37.5 %" in drawn.told[1][0]


def test_exercises_share_one_chart_by_length() -> None:
    (task,) = tasks(exercise("mep", 20, 80.0), exercise("mep", 10, 100.0), exercise("rope", 10, 90.0))
    (drawn,) = probe_figures(1, task, STYLE)
    assert isinstance(drawn, Chart)
    assert {each.name: [(point.x, point.y) for point in each.points] for each in drawn.curves} == {
        "mep": [(10, 100.0), (20, 80.0)],
        "rope": [(10, 90.0)],
    }


def test_tasks_are_told_apart_by_the_options_in_which_they_differ() -> None:
    named = [probe("mep", 128, 1.0, task_options={"keys": keys, "digits": 7}) for keys in (1, 4)]
    assert [task.title for task in tasks(*named, exercise("mep", 10, 1.0))] == [
        "passkey (keys 1)",
        "passkey (keys 4)",
        "copy",
    ]


def test_the_newest_answer_counts() -> None:
    old = probe("mep", 128, 10.0)
    new = old.model_copy(update={"found": 90.0, "created": old.created.replace(year=2026)})
    for rows in ((old, new), (new, old)):
        (task,) = tasks(*rows)
        assert [row.found for row in task.rows["mep"]] == [90.0]


def test_models_that_were_asked_other_questions_are_told_of() -> None:
    (alike,) = tasks(probe("mep", 128, 1.0), probe("rope", 128, 2.0))
    assert alike.notes == ()
    (unlike,) = tasks(probe("mep", 128, 1.0), probe("rope", 128, 2.0, samples_hash="0"))
    assert unlike.notes == ("Not all models were asked the same at 128: prompts and answers differ.",)


def test_answers_that_are_not_finite_leave_a_gap() -> None:
    (task,) = tasks(probe("mep", 128, 1.0, found=None, exact=None, token_accuracy=None, mean_rank=None, non_finite=3))
    (drawn,) = probe_figures(1, task, STYLE)
    assert isinstance(drawn, HeatMap)
    (((cell,),), ((told,),)) = (drawn.cells, drawn.told)
    assert cell is not None
    assert math.isnan(cell)
    assert "logits of 3 samples are not finite" in told


def analyses(*lengths: int) -> dict[int, AnalysisRow]:
    rows = [AnalysisRow.model_validate(analysis("mep", length)) for length in lengths]
    return dict(analyses_by_length(rows)["mep"])


def test_the_receptive_field_of_the_longest_windows_is_drawn() -> None:
    of_longest = longest(analyses(256, 128))
    chart = receptive_field_chart({"mep": of_longest}, STYLE, "field")
    assert chart is not None
    assert [(point.x, point.y) for point in chart.curves[0].points] == [(1, 0.2), (2, 0.5), (4, 0.9), (256, 1.0)]


def test_a_map_of_attention_has_a_row_for_each_head_of_each_layer() -> None:
    drawn = attention_map("mep", analyses(128)[128], "attention")
    assert drawn is not None
    assert list(drawn.rows) == ["1.1", "1.2", "2.1", "2.2"]
    assert list(drawn.columns) == ["0", "1", "2-3", "4-127"]
    assert drawn.cells[1] == [0.1, 0.2, 0.3, 0.4]
    assert drawn.highest == pytest.approx(0.4)


def test_an_analysis_that_is_not_finite_is_said_in_the_table_and_not_drawn() -> None:
    nothing = {"attention_mass": None, "gradient_share": None, "receptive_field": None}
    row = AnalysisRow.model_validate(analysis("mep", 128, **nothing))
    assert attention_map("mep", row, "attention") is None
    assert receptive_field_chart({"mep": row}, STYLE, "field") is None
    assert receptive_field_grid({"mep": {128: row}}).rows[0].cells == ("not finite",)
    assert receptive_field_grid({"mep": analyses(128, 256)}).rows[0].cells == ("126", "254")
