"""What an encoding does in each head by distance, as it is handed to a report, and its figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megatron_mep.reporting.charts import Axis, Chart, Curve, Point, Style, powers

SHADES = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#d8c21a")
"""From the first head to the last, after matplotlib's viridis with a yellow that can be seen on white."""
BEFORE = "before training"

Heads = Sequence[Sequence[float]]
"""By head, at each distance; one where all heads are alike."""


@dataclass(frozen=True)
class Shape:
    """An encoding's effect on tokens that say nothing."""

    encoding: str
    """Its name."""
    meaning: str
    """What the values are."""
    runs: tuple[str, ...]
    """The runs that have it; where it is that of a trained one, the first is drawn, and others are of other seeds."""
    distances: Sequence[int]
    heads: Heads
    untrained: str | None = None
    """Why the values are those before training, which moves them; `None` where they are not."""
    trained: str | None = None
    """Which layer it is of, and after which step; `None` where training has moved nothing that is drawn."""
    before: Heads = ()
    """The same before training, of as many heads; empty where that is not known."""

    @property
    def label(self) -> str:
        """What it is called: encodings that differ in their options have one name."""
        return f"{self.encoding} of {self.runs[0]}"


def shape_chart(shape: Shape, name: str) -> Chart:
    """A curve for each head, and below it a dashed one of what it was before training."""
    title = f"{shape.label}, {shape.trained}" if shape.trained else shape.label
    x = Axis("distance + 1", log=True, ticks=powers(shape.distances[-1] + 1))
    return Chart(name, title, x, Axis(shape.meaning), list(_curves(shape)), dashed=BEFORE)


def told_of(shapes: Sequence[Shape]) -> Iterator[str]:
    """What is not drawn as training left it, and what is not drawn at all."""
    reasons = {shape.label: shape.untrained for shape in shapes if shape.untrained}
    if reasons:
        told = "; ".join(f"{label} ({reason})" for label, reason in reasons.items())
        yield f"Drawn as before training, which moves them: {told}."
    others = {shape.runs[0]: shape.runs[1:] for shape in shapes if shape.trained and shape.runs[1:]}
    for drawn, left in others.items():
        yield f"Not drawn: {', '.join(left)}, trained as {drawn} was but for the seed."


def _curves(shape: Shape) -> Iterator[Curve]:
    last = max(1, len(shape.heads) - 1)
    for number, values in enumerate(shape.heads, start=1):
        name = f"head {number}" if len(shape.heads) > 1 else "every head"
        style = Style(SHADES[(number - 1) * (len(SHADES) - 1) // last], "o")
        yield Curve(name, _points(shape.distances, values), style, "plain")
        if shape.before:
            yield Curve(name, _points(shape.distances, shape.before[number - 1], BEFORE), style, "dashed")


def _points(distances: Sequence[int], values: Sequence[float], told: str = "") -> list[Point]:
    return [Point(distance + 1, value, told) for distance, value in zip(distances, values, strict=True)]
