"""What is in a report: its sections, each with figures as data and a table, for the page and for files alike."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from megatron_mep.reporting.charts import Chart, Drawable, Style, styles
from megatron_mep.reporting.comparison import Comparison, comparisons
from megatron_mep.reporting.length_figures import length_chart, position_chart, undrawn
from megatron_mep.reporting.models import but_for_seed, labels_of, model_of
from megatron_mep.reporting.probe_figures import Task, probe_figures, score, tasks_of
from megatron_mep.reporting.rows import AnalysisRow, ModelRow, ProbeRow, Row
from megatron_mep.reporting.shapes import Shape, shape_chart, told_of
from megatron_mep.reporting.sources import Sources
from megatron_mep.reporting.studies import Summary, study_chart, study_grid
from megatron_mep.reporting.tables import Grid, perplexity_grid, receptive_field_grid, score_grid
from megatron_mep.reporting.training_figures import training_charts, validation_chart
from megatron_mep.reporting.use_figures import analyses_by_length, attention_map, longest, receptive_field_chart

Styles = dict[str, Style]
READING = "Solid: all context. Dashed: context cut to the training length, which is the dotted upright line."
TRAINED = (
    "Where a step is named, solid curves are those after it, and dashed ones those before training. Of layers that "
    "learn each for themselves, the first, the middle and the last are drawn."
)


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    lead: str = ""
    notes: tuple[str, ...] = ()
    """Of what is left out."""
    figures: tuple[Drawable, ...] = ()
    small: tuple[Drawable, ...] = ()
    """Figures of which two stand beside each other on a screen."""
    legend: str = ""
    """How the figures are to be read."""
    grid: Grid | None = None

    @property
    def drawables(self) -> tuple[Drawable, ...]:
        """All of its figures."""
        return (*self.figures, *self.small)


@dataclass(frozen=True)
class Contents:
    """All of a report but what it says of itself."""

    comparisons: tuple[Comparison, ...]
    sections: tuple[Section, ...]

    @property
    def grids(self) -> list[Grid]:
        """All of its tables."""
        return [section.grid for section in self.sections if section.grid is not None]

    @property
    def drawables(self) -> list[Drawable]:
        """All of its figures."""
        return [drawable for section in self.sections for drawable in section.drawables]


def contents_of(sources: Sources, shapes: Sequence[Shape]) -> Contents:
    """What a report says of some sources and of the shapes of their encodings."""
    compared = comparisons(sources.rows(Row))
    style = styles(_kinds(compared, sources))
    parts: tuple[Callable[[], Iterator[Section]], ...] = (
        lambda: _studies(sources.studies),
        lambda: _lengths(compared, style),
        lambda: _positions(sources.rows(Row), style),
        lambda: _probes(sources.rows(ProbeRow), style),
        lambda: _use(sources.rows(AnalysisRow), style),
        lambda: _shapes(shapes),
        lambda: _training(sources, style),
    )
    return Contents(tuple(compared), tuple(section for part in parts for section in part()))


def _kinds(compared: Sequence[Comparison], sources: Sources) -> dict[str, Hashable]:
    """From what is drawn to what models of several seeds share."""
    drawn: list[tuple[str, ModelRow]] = [(line.label, line.model) for each in compared for line in each.lines]
    for rows in (sources.rows(Row), sources.rows(ProbeRow), sources.rows(AnalysisRow)):
        labels = labels_of(rows)
        drawn += [(labels[model_of(row)], row) for row in rows]
    kinds: dict[str, Hashable] = {}
    for label, row in drawn:
        kinds.setdefault(label, but_for_seed(row))
    return kinds | {run: run for run in sources.metrics if run not in kinds}


def _studies(studies: Sequence[Summary]) -> Iterator[Section]:
    tables = [(study, *table) for study in studies for table in study.ways()]
    for place, (study, way, cells) in enumerate(tables, start=1):
        labels = dict.fromkeys(cell.encoding for cell in cells)
        yield Section(
            f"{study.study}: {way}",
            f"{cells[0].scored_tokens:,} scored tokens, hash {cells[0].scored_hash[:12]}.",
            tuple(study.notes),
            _by_length(study_chart(way, cells, styles({label: label for label in labels}), f"study_{place}")),
            grid=study_grid(study, way, cells),
        )


def _by_length(chart: Chart) -> tuple[Chart, ...]:
    """A chart against length, but for a single one."""
    return (chart,) if chart.x.ticks is not None and len(chart.x.ticks) > 1 else ()


def _lengths(compared: Sequence[Comparison], style: Styles) -> Iterator[Section]:
    for place, comparison in enumerate(compared, start=1):
        name = "length_curves" if place == 1 else f"length_curves_{place}"
        missing = undrawn(comparison)
        figures = _by_length(length_chart(comparison, style, name))
        yield Section(
            comparison.name,
            f"{comparison.scored_tokens:,} scored tokens, hash {comparison.scored_hash[:12]}, "
            f"tokenizer {comparison.tokenizer_hash[:12]}.",
            (*comparison.notes, *([f"Not drawn: {'; '.join(missing)}."] if missing else [])),
            figures,
            legend=READING if figures else "",
            grid=perplexity_grid(comparison),
        )


def _positions(rows: Sequence[Row], style: Styles) -> Iterator[Section]:
    chart = position_chart(rows, style, "loss_by_position")
    if chart is not None:
        yield Section(
            "Loss by position",
            "Mean loss of the tokens at each place of a window, of each model in its longest windows.",
            figures=(chart,),
            legend="A curve that falls beyond the training length gains from more context; one that rises breaks down.",
        )


def _probes(rows: Sequence[ProbeRow], style: Styles) -> Iterator[Section]:
    for place, task in enumerate(tasks_of(rows), start=1):
        figures = tuple(probe_figures(place, task, style))
        halves = len(figures) > 1
        yield Section(
            f"{'Exercise' if task.kind == 'formal' else 'Retrieval'}: {task.title}",
            "Share of right answers: words found in greedily generated text or, where that was not measured, answers "
            "predicted token by token.",
            task.notes,
            () if halves else figures,
            figures if halves else (),
            grid=score_grid(task.title, task.lengths, _means(task)),
        )


def _means(task: Task) -> dict[str, dict[int, float]]:
    """Of each model at each length, over the depths."""
    return {
        label: {length: fmean(score(row) for row in rows if row.length == length) for length in task.lengths_of(label)}
        for label, rows in task.rows.items()
    }


def _use(rows: Sequence[AnalysisRow], style: Styles) -> Iterator[Section]:
    if not rows:
        return
    by_length = analyses_by_length(rows)
    of_longest = {label: longest(analyses) for label, analyses in by_length.items()}
    chart = receptive_field_chart(of_longest, style, "receptive_field")
    maps = [
        attention_map(label, row, f"attention_{place}")
        for place, (label, row) in enumerate(of_longest.items(), start=1)
    ]
    yield Section(
        "What the models use",
        "Above, the share of the gradient of what a model predicts that falls on tokens within a distance. Below, the "
        "share of attention that each head gives to the tokens at a distance. Of each model in its longest windows.",
        figures=(chart,) if chart is not None else (),
        small=tuple(each for each in maps if each is not None),
        grid=receptive_field_grid(by_length),
    )


def _shapes(shapes: Sequence[Shape]) -> Iterator[Section]:
    if shapes:
        yield Section(
            "Shapes of the encodings",
            "What each head's encoding does by distance, whatever the text says.",
            tuple(told_of(shapes)),
            small=tuple(shape_chart(shape, f"shape_{place}") for place, shape in enumerate(shapes, start=1)),
            legend=TRAINED if any(shape.trained for shape in shapes) else "",
        )


def _training(sources: Sources, style: Styles) -> Iterator[Section]:
    charts = training_charts(sources.metrics, style)
    positions = [
        validation_chart(run, rows, f"training_positions_{place}")
        for place, (run, rows) in enumerate(sources.validations.items(), start=1)
    ]
    small = [*charts[1:], *(chart for chart in positions if chart is not None)]
    if charts or small:
        yield Section(
            "Training",
            figures=tuple(charts[:1]),
            small=tuple(small),
            legend="Markers are validations. The first tenth of training may lie above the frame.",
        )
