"""Figures for files, by matplotlib."""

from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from megatron_mep.reporting.charts import Axis, Chart, Curve, Drawable, HeatMap
from megatron_mep.reporting.drawing import DASHED, WIDE_IN, legend, look

PANEL_IN = 3.2
"""Height of a panel in inches."""
ROW_IN = 0.3
"""Height of a row of a heat map."""
KINDS = {"marked": "-", "plain": "-", "dashed": DASHED, "dots": "none"}
SOFT = "#777777"
LARGE = 10_000
"""From here on ticks are in thousands or millions."""


def printed(drawable: Drawable) -> Figure:
    """The figure, to be written by `svg` or `png`."""
    with look():
        return _heat_map(drawable) if isinstance(drawable, HeatMap) else _chart(drawable)


def _chart(chart: Chart) -> Figure:
    """Where there is a detail, it stands in a panel of its own beside the whole."""
    panels = [chart.y.limits] if chart.detail is None else [chart.y.limits, chart.detail]
    figure = Figure(figsize=(WIDE_IN, PANEL_IN), layout="constrained")
    for place, (axes, limits) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)):
        _draw_panel(axes, chart, limits, WIDE_IN / len(panels))
        axes.set_title("detail: the lowest perplexities" if place else chart.title)
    others: list[Line2D] = []
    if chart.marks:
        others.append(Line2D([], [], color=SOFT, linestyle=":", linewidth=1.0, label=next(iter(chart.marks.values()))))
    if any(curve.kind == "dashed" for curve in chart.curves):
        others.append(Line2D([], [], color=SOFT, linestyle=DASHED, linewidth=1.1, label=chart.dashed))
    legend(figure, {curve.name: curve.style for curve in chart.curves}, others)
    return figure


def _draw_panel(axes: Axes, chart: Chart, limits: tuple[float, float] | None, width_in: float) -> None:
    for curve in chart.curves:
        _draw_curve(axes, curve)
    for place in chart.marks or ():
        axes.axvline(place, color=SOFT, linewidth=1.0, linestyle=":", zorder=1)
    _dress(axes, "x", chart.x, width_in)
    _dress(axes, "y", Axis(chart.y.title, chart.y.log, chart.y.ticks, limits), width_in)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    axes.plot(
        [point.x for point in curve.points],
        [point.y for point in curve.points],
        color=curve.style.colour,
        marker=curve.style.marker if curve.kind in ("marked", "dots") else None,
        linestyle=KINDS[curve.kind],
        linewidth=1.1 if curve.kind == "dashed" else 1.4,
    )


def _dress(axes: Axes, which: Literal["x", "y"], axis: Axis, width_in: float) -> None:
    """Title, scale, limits and ticks of one of the axes."""
    own = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}label": axis.title})
    if axis.log:
        axes.set(**{f"{which}scale": "log"})
        own.set_minor_locator(NullLocator())
        own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if axis.limits is not None:
        axes.set(**{f"{which}lim": axis.limits})
    if axis.ticks is not None:
        own.set_ticks(list(axis.ticks), list(axis.ticks.values()))
        axes.tick_params(which, labelsize=_tick_size(list(axis.ticks.values()), width_in))
    elif not axis.log:
        own.set_major_locator(MaxNLocator(6))
        if max(map(abs, own.get_view_interval())) >= LARGE:
            own.set_major_formatter(EngFormatter(sep=""))
    else:
        _round_ticks(axes, which)


def _round_ticks(axes: Axes, which: Literal["x", "y"]) -> None:
    """Round numbers on a logarithmic axis; the fewer decades, the more in each."""
    own = axes.xaxis if which == "x" else axes.yaxis
    low, high = own.get_view_interval()
    if high / low < 12:
        own.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    else:
        own.set_major_locator(LogLocator(10, subs=(1, 3) if high / low < 1e5 else (1,), numticks=10))


def _heat_map(drawn: HeatMap) -> Figure:
    figure = Figure(figsize=(WIDE_IN, 1.2 + ROW_IN * len(drawn.rows)), layout="constrained")
    axes = figure.add_subplot()
    cells = [[float("nan") if cell is None else cell for cell in row] for row in drawn.cells]
    image = axes.imshow(cells, cmap="cividis", vmin=0, vmax=drawn.highest, aspect="auto")
    axes.grid(visible=False)
    axes.set_xticks(range(len(drawn.columns)), list(drawn.columns))
    axes.set_yticks(range(len(drawn.rows)), list(drawn.rows))
    axes.tick_params("x", labelsize=_tick_size(drawn.columns, WIDE_IN))
    axes.set(xlabel=drawn.x_title, ylabel=drawn.y_title, title=drawn.title)
    if drawn.written:
        _write_cells(axes, drawn)
    figure.colorbar(image, label=drawn.scale_title)
    return figure


def _write_cells(axes: Axes, drawn: HeatMap) -> None:
    for y, row in enumerate(drawn.cells):
        for x, cell in enumerate(row):
            if cell is not None:
                colour = "#ffffff" if cell < 0.55 * drawn.highest else "#000000"
                axes.text(x, y, f"{cell:.0f}", ha="center", va="center", color=colour)


def _tick_size(labels: Sequence[str], width_in: float) -> float:
    """Points at which the labels stand beside each other; a digit is some 0.62 of its size wide."""
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    room_pt = 72 * 0.8 * width_in / max(1, len(labels))
    return min(9.5, room_pt / (0.62 * (longest + 1)))
