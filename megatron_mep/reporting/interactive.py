"""Figures for the page, by Plotly: its legends wrap at any width, a finger can ask for values, and text stays text.

(Bokeh would make the page 3.5 MB smaller, but its legends are cut off on a telephone.)
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import ceil, isfinite, log10

from plotly import graph_objects
from plotly.offline import get_plotlyjs

from megatron_mep.reporting.charts import Axis, Chart, Curve, Drawable, HeatMap

SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "*": "star",
}
"""From matplotlib's names of markers."""
GRID, INK, SOFT = "#e6e9ec", "#1b1f24", "#57606a"
LINE_PX = 21
"""Height of a line of a legend, or of a row of a heat map."""
WIDE_PX, NARROW_PX = 900, 330
"""Room for a legend on a screen, and on a telephone."""


@dataclass(frozen=True)
class Interactive:
    """A figure for the page."""

    name: str
    title: str
    json: str
    """What Plotly draws; safe inside of a script element."""
    wide_px: int
    narrow_px: int
    """Its height on a screen, and on a telephone."""
    half: bool
    """Whether two stand beside each other on a screen."""


def interactive(drawable: Drawable, half: bool = False) -> Interactive:
    """The figure as the page's script takes it; `half` where two stand beside each other on a screen."""
    if isinstance(drawable, HeatMap):
        figure, heights = _heat_map(drawable), (_map_height(drawable),) * 2
    else:
        figure, heights = _chart(drawable), _chart_heights(drawable, WIDE_PX // 2 if half else WIDE_PX)
    # a script element ends at the first `</script`, wherever it stands
    text = json.dumps(figure.to_plotly_json(), default=list, allow_nan=False).replace("<", "\\u003c")
    return Interactive(drawable.name, drawable.title, text, *heights, half)


def library() -> str:
    """The program that draws the figures, to stand in the page once."""
    return str(get_plotlyjs())


def _chart(chart: Chart) -> graph_objects.Figure:
    figure = graph_objects.Figure(list(_traces(chart)), layout=_layout())
    figure.update_xaxes(**_axis(chart.x))
    figure.update_yaxes(**_axis(chart.y))
    figure.update_layout(
        showlegend=True,
        legend={"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom",
                "maxheight": 0.8, "font": {"size": 13}, "itemwidth": 36},
    )  # fmt: skip
    for place in chart.marks or ():
        figure.add_vline(place, line={"color": SOFT, "width": 1, "dash": "dot"}, layer="below")
    if chart.detail and chart.y.limits:
        whole, detail = (
            {
                "label": label,
                "method": "relayout",
                "args": [{"yaxis.range": list(map(log10, limits)), "yaxis.nticks": _num_ticks(limits)}],
            }
            for label, limits in (("whole range", chart.y.limits), ("lowest perplexities", chart.detail))
        )
        figure.update_layout(
            margin={"t": 44},
            updatemenus=[
                {"type": "buttons", "direction": "right", "buttons": [whole, detail], "x": 0, "xanchor": "left",
                 "y": 1, "yanchor": "bottom", "pad": {"b": 6}, "showactive": True, "font": {"size": 13},
                 "bgcolor": "#ffffff", "bordercolor": "#c9d0d6"}
            ],
        )  # fmt: skip
    return figure


def _traces(chart: Chart) -> Iterator[graph_objects.Scatter]:
    shown: set[str] = set()
    for curve in chart.curves:
        yield _trace(curve, chart, first=curve.name not in shown)
        shown.add(curve.name)


def _trace(curve: Curve, chart: Chart, first: bool) -> graph_objects.Scatter:
    y = [point.y if isfinite(point.y) else None for point in curve.points]
    return graph_objects.Scatter(
        x=[point.x for point in curve.points],
        y=y,
        name=_text(curve.name),
        legendgroup=curve.name,
        showlegend=first,
        mode={"marked": "lines+markers", "dots": "markers"}.get(curve.kind, "lines"),
        line={"color": curve.style.colour, "width": 1.4 if curve.kind == "dashed" else 2,
              "dash": "dash" if curve.kind == "dashed" else "solid"},
        marker={"symbol": SYMBOLS[curve.style.marker], "size": 7, "color": curve.style.colour},
        customdata=[_text(point.told) for point in curve.points],
        hovertemplate=f"<b>%{{fullData.name}}</b><br>{_text(chart.x.title)} %{{x:.6~g}}<br>"
                      f"{_text(chart.y.title)} %{{y:.5~g}}<br>%{{customdata}}<extra></extra>",
    )  # fmt: skip


def _heat_map(drawn: HeatMap) -> graph_objects.Figure:
    trace = graph_objects.Heatmap(
        x=list(map(str, drawn.columns)),
        y=list(drawn.rows),
        z=[[None if cell is None or not isfinite(cell) else cell for cell in row] for row in drawn.cells],
        zmin=0,
        zmax=drawn.highest,
        colorscale="Cividis",
        colorbar={"title": {"text": _text(drawn.scale_title), "side": "right"}, "thickness": 10, "outlinewidth": 0},
        customdata=[[_text(told) for told in row] for row in drawn.told],
        hovertemplate=f"{_text(drawn.x_title)} %{{x}}, {_text(drawn.y_title)} %{{y}}<br>%{{customdata}}<extra></extra>",
        texttemplate="%{z:.0f}" if drawn.written else None,
        xgap=1,
        ygap=1,
    )
    figure = graph_objects.Figure(trace, layout=_layout())
    # what looks like a number is a name here
    figure.update_xaxes(title={"text": _text(drawn.x_title), "font": {"size": 13}}, type="category", showgrid=False)
    figure.update_yaxes(title={"text": _text(drawn.y_title), "font": {"size": 13}}, type="category", showgrid=False)
    figure.update_yaxes(autorange="reversed")
    return figure


def _layout() -> dict[str, object]:
    return {
        "template": "none",
        "autosize": True,
        "dragmode": "zoom",
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "namelength": -1, "bgcolor": "#ffffff", "font": {"size": 13, "color": INK}},
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif",
                 "size": 13, "color": INK},
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": {"automargin": True},
        "yaxis": {"automargin": True},
    }  # fmt: skip


def _axis(axis: Axis) -> dict[str, object]:
    drawn: dict[str, object] = {
        "title": {"text": _text(axis.title), "standoff": 10, "font": {"size": 13}},
        "type": "log" if axis.log else "linear",
        "gridcolor": GRID,
        "zeroline": False,
        "showline": True,
        "linecolor": "#9aa4ad",
        "ticks": "outside",
        "tickcolor": "#9aa4ad",
        "exponentformat": "SI",
        "nticks": 8,
    }
    if axis.log:
        drawn |= {"tickformat": "~g", "nticks": _num_ticks(axis.limits)}
    if axis.ticks is not None:
        drawn |= {"tickvals": list(axis.ticks), "ticktext": [_text(told) for told in axis.ticks.values()]}
    if axis.limits is not None:
        drawn["range"] = list(map(log10, axis.limits)) if axis.log else list(axis.limits)
    return drawn


def _num_ticks(limits: tuple[float, float] | None) -> int:
    """Within a decade Plotly spaces ticks evenly; beyond one, few mean 1, 2, 5 of each."""
    return 6 if limits is not None and limits[1] < 10 * limits[0] else 3


def _chart_heights(chart: Chart, wide_px: int) -> tuple[int, int]:
    """Room for the curves and, below them, for a legend of columns as wide as its longest name."""
    column_px = 56 + 7.2 * max(map(len, chart.names))
    lines = (ceil(len(chart.names) / max(1, room // column_px)) for room in (wide_px, NARROW_PX))
    wide, narrow = (LINE_PX * int(num_lines) for num_lines in lines)
    return 400 + wide, 340 + narrow


def _map_height(drawn: HeatMap) -> int:
    return 110 + max(150, LINE_PX * len(drawn.rows))


def _text(text: str) -> str:
    """Text that Plotly, which knows some HTML, shows as it is."""
    return escape(text, quote=False).replace("\n", "<br>")
