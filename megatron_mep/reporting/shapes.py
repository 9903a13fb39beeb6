"""What an encoding does in each head by distance, as it is handed to a report, and its figure."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_mep.reporting.charts import Axis, Chart, Curve, Point, Style, powers

SHADES = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#d8c21a")
"""From the first head to the last, after matplotlib's viridis with a yellow that can be seen on white."""


@dataclass(frozen=True)
class Shape:
    """An encoding's effect on tokens that say nothing."""

    title: str
    """What encoding it is."""
    meaning: str
    """What the values are."""
    runs: tuple[str, ...]
    """The runs that have it."""
    learned: bool
    """Whether training moves it: the values are those before."""
    distances: Sequence[int]
    heads: Sequence[Sequence[float]]
    """By head, at each distance; one where all heads are alike."""


def shape_chart(shape: Shape, name: str) -> Chart:
    """A curve for each head."""
    last = max(1, len(shape.heads) - 1)
    curves = [
        Curve(
            f"head {number}" if len(shape.heads) > 1 else "every head",
            [Point(distance + 1, value) for distance, value in zip(shape.distances, values, strict=True)],
            Style(SHADES[(number - 1) * (len(SHADES) - 1) // last], "o"),
            "plain",
        )
        for number, values in enumerate(shape.heads, start=1)
    ]
    x = Axis("distance + 1", log=True, ticks=powers(shape.distances[-1] + 1))
    return Chart(name, shape.title, x, Axis(shape.meaning), curves)
