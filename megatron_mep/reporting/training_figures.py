"""The course of training: loss, learning rate, gradient norm and speed, and loss by position at validations."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from megatron_mep.reporting.charts import Axis, Chart, Curve, Point, Style
from megatron_mep.reporting.length_figures import LOSS, position_axis, position_points
from megatron_mep.reporting.rows import Row, TrainingPoint

MAX_POINTS = 400
"""A longer curve is drawn as the means of this many buckets of steps."""
MAX_VALIDATIONS = 6
"""Validations of a run whose loss by position is drawn: the first, the last, and some between."""
TOKENS = Axis("training tokens")
SHADES = ("#b9d3e6", "#8db8d6", "#629dc6", "#3b82b3", "#1b679b", "#0b4a75")
"""From the first of them to the last."""

Metrics = Mapping[str, Sequence[TrainingPoint]]


def training_charts(runs: Metrics, style: Mapping[str, Style]) -> list[Chart]:
    """What of it was recorded, a chart each."""
    others = (
        ("learning_rate", "Learning rate", "learning rate"),
        ("grad_norm", "Gradient norm", "norm before clipping"),
        ("tokens_per_s", "Speed", "tokens a second"),
    )
    charts = [_loss_chart(runs, style)]
    for field, title, unit in others:
        curves = [
            Curve(
                name, thinned((point.consumed_tokens, getattr(point, field)) for point in points), style[name], "plain"
            )
            for name, points in runs.items()
        ]
        charts.append(Chart(f"training_{field}", title, TOKENS, Axis(unit), [each for each in curves if each.points]))
    return [chart for chart in charts if chart.curves]


def validation_chart(run: str, validations: Sequence[Row], name: str) -> Chart | None:
    """Loss by position at some validations of a run, the later the darker; `None` where none tells it."""
    telling = {row.step: row for row in validations if row.position_ends is not None and row.position_nll is not None}
    steps = sorted(telling)
    if not steps:
        return None
    places = np.linspace(0, len(steps) - 1, min(len(steps), MAX_VALIDATIONS)).round().astype(int)
    shades = SHADES[-len(places) :]
    curves = [
        Curve(f"step {steps[place]:,}", position_points(telling[steps[place]]), Style(shade, "o"))
        for place, shade in zip(places, shades, strict=True)
    ]
    x = position_axis(telling.values())
    return Chart(name, f"Loss by position while training: {run}", x, Axis(LOSS), curves)


def thinned(points: Iterable[tuple[int, float | None]]) -> list[Point]:
    """The points that have a finite value, as means of buckets where there are very many."""
    known = [(x, y) for x, y in points if y is not None and math.isfinite(y)]
    if not known:
        return []
    buckets = [bucket.mean(axis=0) for bucket in np.array_split(np.array(known), min(len(known), MAX_POINTS))]
    return [Point(float(x), float(y)) for x, y in buckets]


def _loss_chart(runs: Metrics, style: Mapping[str, Style]) -> Chart:
    """A line for training, markers for validation; the steep start is cut off."""
    curves: list[Curve] = []
    seen: list[float] = []
    for name, points in runs.items():
        trained = thinned((point.consumed_tokens, point.loss) for point in points)
        validated = thinned((point.consumed_tokens, point.validation_loss) for point in points)
        validated = [Point(point.x, point.y, "validation") for point in validated]
        curves += [Curve(name, trained, style[name], "plain"), Curve(name, validated, style[name], "dots")]
        seen += [point.y for point in (*trained[len(trained) // 10 :], *validated)]
    limits = tuple(_limits(seen))
    y = Axis(LOSS, limits=(limits[0], limits[1]) if limits else None)
    return Chart("training_loss", "Loss", TOKENS, y, [curve for curve in curves if curve.points])


def _limits(values: Sequence[float]) -> Iterator[float]:
    if values and max(values) > min(values):
        margin = 0.05 * (max(values) - min(values))
        yield from (min(values) - margin, max(values) + margin)
