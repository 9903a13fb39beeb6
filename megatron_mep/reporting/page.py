"""Renders the report as one HTML page that needs nothing else: figures, style and numbers are inside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from megatron_mep.reporting.comparison import Comparison, Line, model_of
from megatron_mep.reporting.drawing import NARROW_IN, WIDE_IN, Style, inline_svg
from megatron_mep.reporting.figures import length_curves, training_curves, undrawn
from megatron_mep.reporting.records import Read, TrainingPoint
from megatron_mep.reporting.tables import GridRow, grid


@dataclass(frozen=True)
class Provenance:
    """Where a page's numbers are from."""

    command: str
    """The command line that wrote the report."""
    written: datetime
    files: Sequence[Read]
    versions: Mapping[str, str]
    """Of the programs that wrote the report."""


@dataclass(frozen=True)
class Drawing:
    """A figure in two widths, of which a screen shows the one that it can."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class Section:
    """A comparison as the page shows it."""

    comparison: Comparison
    rows: Sequence[GridRow]
    drawing: Drawing | None
    """`None` where there is only one length."""
    undrawn: Sequence[str]


def html_page(
    comparisons: Sequence[Comparison],
    metrics: Mapping[str, Sequence[TrainingPoint]],
    settings: Mapping[str, str],
    style: Mapping[str, Style],
    provenance: Provenance,
) -> str:
    """The whole page.

    Args:
        comparisons: What tables and curves show.
        metrics: From a run's name to its training records.
        settings: From a run's name to its resolved run file, as YAML text.
        style: Of every line's label and every run with metrics.
        provenance: What the page tells about itself.
    """
    environment = Environment(
        loader=PackageLoader("megatron_mep", "reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        sections=[_section(place, comparison, style) for place, comparison in enumerate(comparisons)],
        models=_models(comparisons),
        lengths=sorted({length for comparison in comparisons for length in comparison.lengths}),
        training=_drawing("training", "Loss while training", lambda width: training_curves(metrics, style, width))
        if metrics
        else None,
        settings=settings,
        provenance=provenance,
    )


def _section(place: int, comparison: Comparison, style: Mapping[str, Style]) -> Section:
    drawing = None
    if len(comparison.lengths) > 1:
        drawing = _drawing(f"curve{place}", comparison.title, lambda width: length_curves([comparison], style, width))
    return Section(comparison, grid(comparison), drawing, undrawn(comparison))


def _drawing(name: str, description: str, draw: Callable[[float], Figure]) -> Drawing:
    wide = inline_svg(draw(WIDE_IN), f"{name}-wide", description)
    narrow = inline_svg(draw(NARROW_IN), f"{name}-narrow", description)
    # matplotlib escapes the text inside its figures
    return Drawing(Markup(wide), Markup(narrow))


def _models(comparisons: Sequence[Comparison]) -> list[Line]:
    """Every model once, as the first comparison that shows it does."""
    models: dict[tuple[object, ...], Line] = {}
    for comparison in comparisons:
        for line in comparison.lines:
            models.setdefault(model_of(line.model), line)
    return list(models.values())
