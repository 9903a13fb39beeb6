"""The figure of a measurement: time against that of unbiased attention over the length, a panel for each case."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from megatron_mep.reporting.charts import COLOURS, MARKERS
from megatron_mep.reporting.drawing import DASHED, WIDE_IN, look
from tools.bench_attention.contenders import NAMES
from tools.bench_attention.problem import CASES
from tools.bench_attention.table import Row

HEIGHT_IN = 4.3
LEARNED = "-learned"
FAMILIES = tuple(dict.fromkeys(name.removesuffix(LEARNED) for name in NAMES))


class Style(NamedTuple):
    """Of a contender's line."""

    colour: str
    marker: str
    face: str
    """Colour inside the marker."""
    dashes: Literal["-"] | tuple[float, Sequence[float]]


def ratio_curves(rows: Sequence[Row], title: str) -> Figure:
    """Solid lines where the bias is fixed, dashed ones where it learns; bars from quartile to quartile."""
    with look():
        figure = Figure(figsize=(WIDE_IN, HEIGHT_IN), layout="constrained")
        panels = figure.subplots(1, len(CASES), sharey=True)
        for axes, case in zip(panels, CASES, strict=True):
            _draw_panel(axes, [row for row in rows if row.case == case])
            axes.set_title(case)
        panels[0].set_ylabel("time / unbiased causal attention")
        figure.suptitle(title, fontsize=9.5)
        _legend(figure, [name for name in NAMES if any(row.contender == name for row in rows)])
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row]) -> None:
    axes.axhline(1.0, color="#777777", linestyle=":", linewidth=1.2)
    for name in NAMES:
        own = [row for row in rows if row.contender == name]
        if own:
            ratios = [row.ratio for row in own]
            below = [row.ratio - row.ratio_quartiles[0] for row in own]
            above = [row.ratio_quartiles[1] - row.ratio for row in own]
            style = _style(name)
            axes.errorbar(
                [row.length for row in own],
                ratios,
                yerr=(below, above),
                elinewidth=1.0,
                color=style.colour,
                linestyle=style.dashes,
                marker=style.marker,
                markerfacecolor=style.face,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({row.length for row in rows})))
    axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}" if value < 10 else f"{value:.0f}"))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("positions")


def _style(name: str) -> Style:
    place = FAMILIES.index(name.removesuffix(LEARNED))
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    return Style(colour, marker, "white", DASHED) if name.endswith(LEARNED) else Style(colour, marker, colour, "-")


def _legend(figure: Figure, names: Sequence[str]) -> None:
    """In two lines: what is fixed above what learns, where both were measured."""
    handles = []
    for name in names:
        colour, marker, face, dashes = _style(name)
        handles.append(Line2D([], [], label=name, color=colour, marker=marker, markerfacecolor=face, linestyle=dashes))
    handles.append(Line2D([], [], color="#777777", linestyle=":", linewidth=1.2, label="unbiased = 1"))
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // 2))
