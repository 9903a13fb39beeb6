"""Training figures as data: what was recorded is drawn, thinned where there is much of it."""

import math
from typing import Any

from megatron_mep.reporting.charts import styles
from megatron_mep.reporting.rows import TrainingPoint
from megatron_mep.reporting.training_figures import MAX_VALIDATIONS, training_charts, validation_chart
from tests.reporting.example import as_read, result

STYLE = styles({"mep": "mep"})


def test_a_long_curve_is_thinned_and_skips_what_is_not_finite() -> None:
    losses = [math.nan, None, *(5.0 for _ in range(3998))]
    points = [TrainingPoint(step=step, consumed_tokens=64 * step, loss=loss) for step, loss in enumerate(losses)]
    points.append(TrainingPoint(step=4000, consumed_tokens=256_000, validation_loss=6.0))
    (chart,) = training_charts({"mep": points}, STYLE)
    trained, validated = chart.curves
    assert [point.y for point in trained.points] == [5.0] * 400
    assert [(point.x, point.y) for point in validated.points] == [(256_000, 6.0)]
    assert (trained.kind, validated.kind) == ("plain", "dots")


def test_each_of_the_others_that_was_recorded_has_a_chart() -> None:
    point = TrainingPoint(step=1, consumed_tokens=64, loss=5.0, learning_rate=0.1, grad_norm=2.0, tokens_per_s=9.0)
    charts = training_charts({"mep": [point]}, STYLE)
    assert [chart.name for chart in charts] == [
        "training_loss",
        "training_learning_rate",
        "training_grad_norm",
        "training_tokens_per_s",
    ]
    assert [chart.curves[0].points[0].y for chart in charts] == [5.0, 0.1, 2.0, 9.0]


def test_the_steep_start_is_cut_off() -> None:
    points = [TrainingPoint(step=step, consumed_tokens=step, loss=100 / step) for step in range(1, 101)]
    limits = training_charts({"mep": points}, STYLE)[0].y.limits
    assert limits is not None
    assert limits[1] < 11


def test_some_validations_are_drawn_the_first_and_the_last_among_them() -> None:
    told: dict[str, Any] = {"position_ends": (1, 128), "position_nll": (6.0, 5.0), "purpose": "validation"}
    rows = as_read(*(result("mep", 128, 30.0, step=step, **told) for step in range(100, 2100, 100)))
    chart = validation_chart("mep", rows, "positions")
    assert chart is not None
    assert len(chart.curves) == MAX_VALIDATIONS
    assert (chart.curves[0].name, chart.curves[-1].name) == ("step 100", "step 2,000")
    assert [point.y for point in chart.curves[0].points] == [6.0, 5.0]
    assert validation_chart("mep", as_read(result("mep", 128, 30.0)), "positions") is None
