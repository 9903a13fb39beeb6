"""The figures of a report: perplexity against length, and loss against training tokens."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from megatron_mep.reporting.comparison import Comparison, Line
from megatron_mep.reporting.drawing import DASHED, WIDE_IN, Style, legend, look
from megatron_mep.reporting.records import Row, TrainingPoint

PANEL_IN = 3.2
"""Height of a panel in inches."""
MAX_POINTS = 400
"""A longer training curve is drawn as the means of this many buckets of steps."""


@dataclass(frozen=True)
class Panel:
    """A place of a figure, and what it shows."""

    comparison: Comparison
    row: int
    column: int | slice
    top: float | None = None
    """The highest perplexity of a detail; `None` for the whole range."""

    @property
    def title(self) -> str:
        """What tells it from the figure's other panels."""
        whole = f"{self.comparison.name}, hash {self.comparison.scored_hash[:8]}"
        return "detail: the lowest perplexities" if self.top else whole


def length_curves(comparisons: Sequence[Comparison], style: Mapping[str, Style], width_in: float = WIDE_IN) -> Figure:
    """Perplexity against length for each comparison: solid with all context, dashed with it cut.

    Where some model breaks down, a second panel shows the others in detail: beside the first, or below it on a
    narrow figure.
    """
    columns = 2 if width_in >= WIDE_IN else 1
    panels = list(_panels(comparisons, columns))
    num_rows = panels[-1].row + 1
    with look():
        figure = Figure(figsize=(width_in, PANEL_IN * num_rows), layout="constrained")
        grid = figure.add_gridspec(num_rows, columns)
        for panel in panels:
            axes = figure.add_subplot(grid[panel.row, panel.column])
            _draw_panel(axes, panel, style, width_in / columns)
            if len(panels) > 1:
                axes.set_title(panel.title)
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
        figure = Figure(figsize=(width_in, PANEL_IN), layout="constrained")
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


def _panels(comparisons: Sequence[Comparison], columns: int) -> Iterator[Panel]:
    row = 0
    for comparison in comparisons:
        top = _detail_top(comparison)
        yield Panel(comparison, row, 0 if top else slice(None))
        if top:
            row += columns == 1
            yield Panel(comparison, row, columns - 1, top)
        row += 1


def _draw_panel(axes: Axes, panel: Panel, style: Mapping[str, Style], width_in: float) -> None:
    comparison, top = panel.comparison, panel.top
    for line in comparison.lines:
        _draw_line(axes, line, style[line.label])
    train_lengths = sorted({line.model.train_length for line in comparison.lines})
    for train_length in train_lengths:
        axes.axvline(train_length, color="#777777", linewidth=1.0, linestyle=":", zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(comparison.lengths, [_tick(length, train_lengths) for length in comparison.lengths])
    axes.tick_params("x", labelsize=_tick_size(comparison.lengths, width_in))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    _perplexity_axis(axes, [value for value in _values(comparison) if top is None or value <= top])
    axes.set(xlabel="length (tokens)", ylabel="perplexity")


def _draw_line(axes: Axes, line: Line, style: Style) -> None:
    lengths, values = _points(line.full)
    axes.plot(lengths, values, color=style.colour, marker=style.marker)
    beyond = {length: row for length, row in line.cut.items() if length >= line.model.train_length}
    lengths, values = _points(beyond)
    axes.plot(lengths, values, color=style.colour, linestyle=DASHED, linewidth=1.1)


def _perplexity_axis(axes: Axes, values: Sequence[float]) -> None:
    """Limits around the values, and round numbers as ticks; the fewer decades, the more in each."""
    if values:
        margin = max(1.02, (max(values) / min(values)) ** 0.06)
        axes.set_ylim(min(values) / margin, max(values) * margin)
    low, high = axes.get_ylim()
    if high / low < 12:
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    else:
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 3) if high / low < 1e5 else (1,), numticks=10))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _detail_top(comparison: Comparison) -> float | None:
    """Up to where a detail shows: what is about as good as at the training length, but not twice the lowest.

    `None` where the whole range is fine enough.
    """
    values = list(_values(comparison))
    trained = [line.full[line.model.train_length] for line in comparison.lines if line.model.train_length in line.full]
    good = [row.value for row in trained if math.isfinite(row.value) and row.value < 2 * min(values)]
    top = 1.05 * max(good, default=math.inf)
    return top if values and max(values) > 2 * top else None


def _values(comparison: Comparison) -> Iterator[float]:
    for line in comparison.lines:
        yield from (row.value for row in line.measured if math.isfinite(row.value))


def _points(rows: Mapping[int, Row]) -> tuple[list[int], list[float]]:
    """Lengths and perplexities; one that is not finite leaves a gap in its line."""
    lengths = sorted(rows)
    return lengths, [rows[length].value for length in lengths]


def _tick(length: int, train_lengths: Sequence[int]) -> str:
    """The length, with its multiple of the training length where all models share one."""
    multiple = f"\n{length / train_lengths[0]:.3g}\N{MULTIPLICATION SIGN}" if len(train_lengths) == 1 else ""
    return f"{length}{multiple}"


def _tick_size(lengths: Sequence[int], width_in: float) -> float:
    """Points at which the lengths stand beside each other; a digit is some 0.62 of its size wide."""
    room_pt = 72 * 0.8 * width_in / len(lengths)
    return min(9.5, room_pt / (0.62 * (len(str(lengths[-1])) + 1)))


def _thinned(points: Iterable[tuple[int, float | None]]) -> tuple[list[float], list[float]]:
    """The points that have a finite value, as means of buckets where there are very many."""
    known = [(x, y) for x, y in points if y is not None and math.isfinite(y)]
    if not known:
        return [], []
    buckets = [bucket.mean(axis=0) for bucket in np.array_split(np.array(known), min(len(known), MAX_POINTS))]
    return [float(x) for x, _ in buckets], [float(y) for _, y in buckets]
