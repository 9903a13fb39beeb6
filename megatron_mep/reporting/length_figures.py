"""Perplexity against length, and loss against the position in a window."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from megatron_mep.reporting.charts import Axis, Chart, Curve, Point, Style, around, powers
from megatron_mep.reporting.comparison import Comparison, Line
from megatron_mep.reporting.models import labels_of, model_of
from megatron_mep.reporting.rows import Row
from megatron_mep.reporting.tables import shown

MARKED = "training length"
LOSS = "loss (nats per token)"


def length_chart(comparison: Comparison, style: Mapping[str, Style], name: str) -> Chart:
    """Perplexity of every model against length: solid with all context, dashed with it cut."""
    train_lengths = sorted({line.model.train_length for line in comparison.lines})
    ticks = {float(length): _tick(length, train_lengths) for length in comparison.lengths}
    values = list(_values(comparison))
    return Chart(
        name,
        f"{comparison.name}, hash {comparison.scored_hash[:8]}",
        Axis("length (tokens)", log=True, ticks=ticks),
        Axis("perplexity", log=True, limits=around(values)),
        [curve for line in comparison.lines for curve in _curves(line, style[line.label])],
        dict.fromkeys(map(float, train_lengths), MARKED),
        _detail(comparison, values),
        dashed="context cut to it",
    )


def undrawn(comparison: Comparison) -> list[str]:
    """What a figure cannot show, in words."""
    return [
        f"{line.label} at {row.length}{' with context cut' if row.context == 'cut' else ''} "
        f"({'the NLL is not finite' if math.isnan(row.value) else 'beyond the largest double'})"
        for line in comparison.lines
        for row in line.measured
        if not math.isfinite(row.value)
    ]


def position_chart(rows: Sequence[Row], style: Mapping[str, Style], name: str) -> Chart | None:
    """Loss of every model against the position in its longest window; `None` where no row tells it.

    Rows of `per-position` tell it in full; each model's newest one at its longest length counts.
    """
    telling = [row for row in rows if row.position_ends is not None and row.position_nll is not None]
    labels = labels_of(rows)
    longest: dict[str, Row] = {}
    for row in sorted(telling, key=lambda row: (row.protocol == "per-position", row.length, row.created)):
        longest[labels[model_of(row)]] = row
    shown_rows = {label: longest[label] for label in labels.values() if label in longest}
    if not shown_rows:
        return None
    return Chart(
        name,
        "Loss by position",
        position_axis(shown_rows.values()),
        Axis(LOSS),
        [Curve(label, position_points(row), style[label]) for label, row in shown_rows.items()],
        dict.fromkeys((float(row.train_length) for row in shown_rows.values()), MARKED),
    )


def position_axis(rows: Iterable[Row]) -> Axis:
    """The axis of charts of loss by position."""
    return Axis("position in the window", log=True, ticks=powers(max(row.length for row in rows)))


def position_points(row: Row) -> list[Point]:
    """Mean loss of the ranges of positions, each at its last one."""
    assert row.position_ends is not None, "asked of rows that tell it"
    assert row.position_nll is not None, "ranges come with their losses"
    firsts = (1, *(end + 1 for end in row.position_ends[:-1]))
    return [
        Point(end, math.nan if nll is None else nll, f"positions {first} to {end}, windows of {row.length}")
        for first, end, nll in zip(firsts, row.position_ends, row.position_nll, strict=True)
    ]


def _curves(line: Line, style: Style) -> Iterator[Curve]:
    yield Curve(line.label, [_point(line, length) for length in sorted(line.full)], style)
    beyond = sorted(length for length in line.cut if length >= line.model.train_length)
    if len(beyond) > 1:
        told = f"context cut to {line.model.train_length}"
        points = [Point(length, line.cut[length].value, f"{told}\n{_scored(line.cut[length])}") for length in beyond]
        yield Curve(line.label, points, style, "dashed")


def _point(line: Line, length: int) -> Point:
    row = line.full[length]
    told = []
    if row.perplexity_low is not None and row.perplexity_high is not None:
        told.append(f"95 % interval {shown(row.perplexity_low)} to {shown(row.perplexity_high)}")
    if row.bits_per_byte is not None:
        told.append(f"bits per byte {row.bits_per_byte:.4f}")
    ratio = line.ratio(length)
    if math.isfinite(ratio):
        told.append(f"ratio to {line.model.train_length}: {ratio:.3f}")
    return Point(length, row.value, "\n".join([*told, _scored(row)]))


def _scored(row: Row) -> str:
    return f"{row.scored_tokens:,} scored tokens"


def _detail(comparison: Comparison, values: Sequence[float]) -> tuple[float, float] | None:
    """Shows what is about as good as at the training length, but not twice the lowest.

    `None` where the whole range is fine enough.
    """
    trained = [line.full[line.model.train_length] for line in comparison.lines if line.model.train_length in line.full]
    good = [row.value for row in trained if math.isfinite(row.value) and row.value < 2 * min(values)]
    top = 1.05 * max(good, default=math.inf)
    return around(value for value in values if value <= top) if values and max(values) > 2 * top else None


def _values(comparison: Comparison) -> Iterator[float]:
    for line in comparison.lines:
        yield from (row.value for row in line.measured if math.isfinite(row.value))


def _tick(length: int, train_lengths: Sequence[int]) -> str:
    """The length, with its multiple of the training length where all models share one."""
    multiple = f"\n{length / train_lengths[0]:.3g}\N{MULTIPLICATION SIGN}" if len(train_lengths) == 1 else ""
    return f"{length}{multiple}"
