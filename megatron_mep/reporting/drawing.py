"""How figures look and leave as SVG and PNG: fonts, lines, legends, without matplotlib's global figure state."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from megatron_mep.reporting.charts import Style

WIDE_IN = 9.6
"""Width of a figure in inches."""
DASHED = (0, (4, 2.5))
LOOK: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "text.parse_math": False,  # a run may have dollars in its name
    "svg.fonttype": "none",  # text stays text: small, searchable, read aloud
    "svg.hashsalt": "megatron_mep",  # the same rows give the same file
}


@contextmanager
def look() -> Iterator[None]:
    """Within it, figures are made and written as a report wants them."""
    with mpl.rc_context(LOOK):
        yield


def legend(figure: Figure, style: Mapping[str, Style], others: Sequence[Line2D]) -> None:
    """Below the figure, which grows by it: names by their style, then the other kinds of line."""
    handles = [
        Line2D([], [], color=drawn.colour, marker=drawn.marker, label=_label(name, int(figure.get_figwidth() * 10)))
        for name, drawn in style.items()
    ]
    handles += others
    lines = [str(handle.get_label()).splitlines() for handle in handles]
    longest = max(len(line) for label in lines for line in label)
    columns = min(len(handles), max(1, int(figure.get_figwidth() * 13 / (longest + 7))))
    num_lines = max(sum(map(len, lines[column::columns])) for column in range(columns))
    figure.set_figheight(figure.get_figheight() + 0.2 * num_lines + 0.1)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def svg(figure: Figure) -> str:
    """The figure as an SVG document, with no date and no address in it."""
    text = io.StringIO()
    with look():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()


def png(figure: Figure) -> bytes:
    """The figure as a PNG image at 200 dots an inch."""
    image = io.BytesIO()
    with look():
        figure.savefig(image, format="png", dpi=200)
    return image.getvalue()


def _label(name: str, width: int) -> str:
    """A name in lines of at most `width` characters; matplotlib passes over one that starts with an underscore."""
    wrapped = "\n".join(wrap(name, width))
    return f" {wrapped}" if wrapped.startswith("_") else wrapped
