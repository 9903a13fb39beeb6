"""Renders the report as one HTML page that needs nothing else: figures, their program and numbers are inside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from megatron_mep.reporting.charts import Drawable
from megatron_mep.reporting.contents import Contents
from megatron_mep.reporting.interactive import Interactive, interactive, library
from megatron_mep.reporting.models import labels_of, model_of
from megatron_mep.reporting.provenance import Provenance
from megatron_mep.reporting.rows import ModelRow
from megatron_mep.reporting.sources import Sources


@dataclass(frozen=True)
class Model:
    """A model of the table of models."""

    label: str
    row: ModelRow
    """Any of its rows."""


def html_page(contents: Contents, sources: Sources, provenance: Provenance, files: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        contents: Figures and tables.
        sources: What they were made of.
        provenance: What the page tells about itself.
        files: From a figure's name to where its files are, without a suffix.
    """
    environment = Environment(
        loader=PackageLoader("megatron_mep", "reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        sections=contents.sections,
        draw=_draw,
        files=files,
        library=Markup(library()) if contents.drawables else None,
        models=_models([record.row for record in sources.records]),
        lengths=sorted({length for comparison in contents.comparisons for length in comparison.lengths}),
        settings=sources.settings,
        writers=sources.writers,
        provenance=provenance,
    )


def _draw(drawable: Drawable, half: bool) -> tuple[Interactive, Markup]:
    """A figure, and its data as they may stand in a script element."""
    drawn = interactive(drawable, half)
    return drawn, Markup(drawn.json)


def _models(rows: Sequence[ModelRow]) -> list[Model]:
    """Every model once."""
    labels = labels_of(rows)
    by_label = {labels[model_of(row)]: row for row in reversed(rows)}
    return [Model(label, by_label[label]) for label in labels.values()]
