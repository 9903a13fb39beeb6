"""Figures as data: built once, then drawn to be looked into on the page, and drawn into files."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette for all kinds of colour vision, without its yellow, which white swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Of matplotlib."""


@dataclass(frozen=True)
class Style:
    """How a curve is drawn."""

    colour: str
    marker: str


@dataclass(frozen=True)
class Axis:
    """One of a chart's axes."""

    title: str
    log: bool = False
    ticks: Mapping[float, str] | None = None
    """`None` leaves them to the drawing."""
    limits: tuple[float, float] | None = None
    """`None`: all that is drawn."""


@dataclass(frozen=True)
class Point:
    """A place on a curve."""

    x: float
    y: float
    """A gap where it is not finite."""
    told: str = ""
    """What else there is to know of it, in lines."""


@dataclass(frozen=True)
class Curve:
    """Points in the order of a line; curves of one name share an entry of the legend."""

    name: str
    points: Sequence[Point]
    style: Style
    kind: Literal["marked", "plain", "dashed", "dots"] = "marked"
    """A line with markers, one without, a dashed one, or markers alone."""


@dataclass(frozen=True)
class Chart:
    """Curves over one pair of axes."""

    name: str
    """Of its files, and on the page."""
    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    marks: Mapping[float, str] | None = None
    """Vertical lines, and what each is."""
    detail: tuple[float, float] | None = None
    """Limits of the upright axis between which more can be seen than in the whole."""
    dashed: str = ""
    """What dashed curves are."""

    @property
    def names(self) -> list[str]:
        """The entries of the legend."""
        return list(dict.fromkeys(curve.name for curve in self.curves))


@dataclass(frozen=True)
class HeatMap:
    """A table of colours."""

    name: str
    title: str
    x_title: str
    y_title: str
    columns: Sequence[str]
    rows: Sequence[str]
    """From the top."""
    cells: Sequence[Sequence[float | None]]
    """By row; `None` leaves a gap."""
    told: Sequence[Sequence[str]]
    """What there is to know of each cell, in lines."""
    scale_title: str
    highest: float
    """Of the scale of colours, which begins at 0."""
    written: bool
    """Whether the numbers stand in the cells."""


Drawable = Chart | HeatMap


def styles(kinds: Mapping[str, Hashable]) -> dict[str, Style]:
    """A style for each name, from the kind that it is of: names of one kind share a colour and differ in markers.

    No two of up to eight names of a colour are drawn alike.
    """
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds.values()))}
    taken: Counter[str] = Counter()
    drawn: dict[str, Style] = {}
    for name, kind in kinds.items():
        colour = COLOURS[places[kind] % len(COLOURS)]
        drawn[name] = Style(colour, MARKERS[taken[colour] % len(MARKERS)])
        taken[colour] += 1
    return drawn


def powers(last: float) -> dict[float, str]:
    """Ticks of a logarithmic axis of whole numbers from 1: powers of 2, or of 4 where there would be many."""
    base = 2 if last <= 256 else 4
    exponents = range(int(math.log(last, base) + 1e-9) + 1)
    return {float(base**exponent): str(base**exponent) for exponent in exponents}


def around(values: Iterable[float]) -> tuple[float, float] | None:
    """Limits of a logarithmic axis around positive values; `None` where none is finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    margin = max(1.02, (max(finite) / min(finite)) ** 0.06)
    return min(finite) / margin, max(finite) * margin
