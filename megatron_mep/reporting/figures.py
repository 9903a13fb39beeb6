"""The figures of a report: perplexity against length, and loss against training tokens."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from megatron_mep.reporting.comparison import Comparison, Line
from megatron_mep.reporting.drawing import DASHED, WIDE_IN, Style, legend, look
from megatron_mep.reporting.records import Row, TrainingPoint

PANEL_IN = 3.4
"""Height of a panel in inches."""
DETAIL = 1.3
"""A detail reaches up to this multiple of the lowest perplexity; it is drawn where some model exceeds twice that."""
MAX_POINTS = 400
"""A longer training curve is drawn as the means of this many buckets of steps."""


def length_curves(comparisons: Sequence[Comparison], style: Mapping[str, Style], width_in: float = WIDE_IN) -> Figure:
    """Perplexity against length for each comparison: solid with all context, dashed with it cut.

    Where some model breaks down, a second panel shows the others in detail: beside the first, or below it on a
    narrow figure.
    """
    panels = [[None, top] if (top := _detail_top(each)) else [None] for each in comparisons]
    beside = width_in >= WIDE_IN
    num_rows = len(panels) if beside else sum(map(len, panels))
    with look():
        figure = Figure(figsize=(width_in, PANEL_IN * num_rows + 0.6), layout="constrained")
        grid = figure.add_gridspec(num_rows, 2 if beside else 1)
        row = 0
        for comparison, tops in zip(comparisons, panels, strict=True):
            for column, top in enumerate(tops):
                place = grid[row, column] if beside and len(tops) > 1 else grid[row, :]
                axes = figure.add_subplot(place)
                _length_panel(axes, comparison, style, top)
                if len(comparisons) > 1 or len(tops) > 1:
                    whole = f"{comparison.name}, hash {comparison.scored_hash[:8]}"
                    axes.set_title("detail: the lowest perplexities" if top else whole)
                row += not beside
            row += beside
        others = [Line2D([], [], color="#777777", linestyle=":", linewidth=1.0, label="training length")]
        if any(line.cut for comparison in comparisons for line in comparison.lines):
            others.append(Line2D([], [], color="#555555", linestyle=DASHED, linewidth=1.1, label="context cut to it"))
        legend(figure, style, (line.label for comparison in comparisons for line in comparison.lines), others)
    return figure


def training_curves(
    runs: Mapping[str, Sequence[TrainingPoint]], style: Mapping[str, Style], width_in: float = WIDE_IN
) -> Figure:
    """Loss against training tokens: a line for training, markers for validation; the steep start is cut off."""
    with look():
        figure = Figure(figsize=(width_in, PANEL_IN + 0.4), layout="constrained")
        axes = figure.add_subplot()
        tops: list[float] = []
        for name, points in runs.items():
            colour, marker = style[name].colour, style[name].marker
            tokens, loss = _thinned((point.consumed_tokens, point.loss) for point in points)
            axes.plot(tokens, loss, color=colour, linewidth=1.2)
            tops += loss[len(loss) // 10 :]
            tokens, loss = _thinned((point.consumed_tokens, point.validation_loss) for point in points)
            axes.plot(tokens, loss, color=colour, linestyle="none", marker=marker)
            tops += loss
        if tops:
            axes.set_ylim(top=max(tops) + 0.05 * (max(tops) - min(tops)) or None)
        axes.set(xlabel="training tokens", ylabel="loss (nats per token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        legend(figure, style, runs, [])
    return figure


def undrawn(comparison: Comparison) -> list[str]:
    """What a figure cannot show, in words."""
    return [
        f"{line.label} at {row.length}{' with context cut' if row.context == 'cut' else ''} "
        f"({'the NLL is not finite' if math.isnan(row.value) else 'beyond the largest double'})"
        for line in comparison.lines
        for row in line.measured
        if not math.isfinite(row.value)
    ]


def _length_panel(axes: Axes, comparison: Comparison, style: Mapping[str, Style], top: float | None) -> None:
    for line in comparison.lines:
        _draw_line(axes, line, style[line.label])
    train_lengths = sorted({line.model.train_length for line in comparison.lines})
    for train_length in train_lengths:
        axes.axvline(train_length, color="#777777", linewidth=1.0, linestyle=":", zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(comparison.lengths, [_tick(length, train_lengths) for length in comparison.lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    _perplexity_axis(axes, [value for value in _values(comparison) if top is None or value <= top])
    axes.set(xlabel="length (tokens)", ylabel="perplexity")


def _draw_line(axes: Axes, line: Line, style: Style) -> None:
    lengths, values = _finite(line.full)
    axes.plot(lengths, values, color=style.colour, marker=style.marker)
    beyond = {length: row for length, row in line.cut.items() if length >= line.model.train_length}
    lengths, values = _finite(beyond)
    axes.plot(lengths, values, color=style.colour, linestyle=DASHED, linewidth=1.1)


def _perplexity_axis(axes: Axes, values: Sequence[float]) -> None:
    """Limits around the values, and round numbers as ticks: few decades need more than their powers of ten."""
    if values:
        margin = max(1.02, (max(values) / min(values)) ** 0.06)
        axes.set_ylim(min(values) / margin, max(values) * margin)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(
        MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]) if high / low < 12 else LogLocator(10, subs=(1, 3))
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _detail_top(comparison: Comparison) -> float | None:
    """Up to where a detail shows, or `None` where the whole range is fine enough."""
    values = list(_values(comparison))
    return DETAIL * min(values) if values and max(values) > 2 * DETAIL * min(values) else None


def _values(comparison: Comparison) -> Iterator[float]:
    for line in comparison.lines:
        yield from (row.value for row in line.measured if math.isfinite(row.value))


def _finite(rows: Mapping[int, Row]) -> tuple[list[int], list[float]]:
    drawn = [(length, row.value) for length, row in sorted(rows.items()) if math.isfinite(row.value)]
    return [length for length, _ in drawn], [value for _, value in drawn]


def _tick(length: int, train_lengths: Sequence[int]) -> str:
    """The length, with its multiple of the training length where all models share one."""
    multiple = f"\n{length / train_lengths[0]:.3g}\N{MULTIPLICATION SIGN}" if len(train_lengths) == 1 else ""
    return f"{length}{multiple}"


def _thinned(points: Iterable[tuple[int, float | None]]) -> tuple[list[float], list[float]]:
    """The points that have a finite value, as means of buckets where there are very many."""
    known = [(x, y) for x, y in points if y is not None and math.isfinite(y)]
    if not known:
        return [], []
    buckets = [bucket.mean(axis=0) for bucket in np.array_split(np.array(known), min(len(known), MAX_POINTS))]
    return [float(x) for x, _ in buckets], [float(y) for _, y in buckets]
