"""How figures look and leave as SVG and PNG: colours, markers, legends, without matplotlib's global figure state."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

WIDE_IN = 9.6
NARROW_IN = 4.0
"""Widths in inches for a screen, and for a telephone."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette for all kinds of colour vision, without its yellow, which white swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
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


@dataclass(frozen=True)
class Style:
    """How a model is drawn, in every figure of a report."""

    colour: str
    marker: str


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name; seven colours and eight markers make 56 different ones."""
    unique = dict.fromkeys(names)
    return {name: Style(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(unique)}


@contextmanager
def look() -> Iterator[None]:
    """Within it, figures are made and written as a report wants them."""
    with mpl.rc_context(LOOK):
        yield


def legend(figure: Figure, style: Mapping[str, Style], names: Iterable[str], others: Sequence[Line2D]) -> None:
    """Below the figure, which grows by it: the models by their style, then the other kinds of line."""
    wanted = set(names)
    handles = [
        Line2D([], [], color=drawn.colour, marker=drawn.marker, label=_label(name, int(figure.get_figwidth() * 10)))
        for name, drawn in style.items()
        if name in wanted
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


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an element of an HTML page; its ids start with `name`, so that no two figures share one."""
    document = svg(figure)
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", document[document.index("<svg") :])
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)


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
