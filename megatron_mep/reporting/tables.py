"""Tables of a report as grids of strings: perplexity by length, answers by length, receptive fields."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from megatron_mep.reporting.comparison import Comparison, Line
from megatron_mep.reporting.rows import AnalysisRow, Row


@dataclass(frozen=True)
class GridRow:
    """A row of a table, ready to be shown."""

    kind: str
    """`full`, or what it tells besides the full row above it: `cut` or `ratio`."""
    head: str
    """The line's label, and below it what the other rows are."""
    cells: tuple[str, ...]
    """One a column."""
    best: tuple[bool, ...]
    """Where the cell is the best of its column, all context seen."""


@dataclass(frozen=True)
class Grid:
    """A table, ready to be written in any language."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]
    notes: tuple[str, ...] = ()
    caption: str = ""
    """What is to be said below it, where its title is not enough."""


def perplexity_grid(comparison: Comparison) -> Grid:
    """Per line: perplexity with all context, the control, and the ratio to the training length."""
    rows = tuple(row for line in comparison.lines for row in _line_rows(line, comparison))
    columns = tuple(map(str, comparison.lengths))
    caption = "Perplexity, the lowest of each length in bold." if len(comparison.lines) > 1 else ""
    return Grid(comparison.title, "perplexity at length", columns, rows, comparison.notes, caption)


def score_grid(title: str, lengths: Sequence[int], scores: Mapping[str, Mapping[int, float]]) -> Grid:
    """Percentages of each model by length; the highest of a length is the best."""
    told = {label: [_percent(own.get(length)) for length in lengths] for label, own in scores.items()}
    highest = [_percent(max(filter(math.isfinite, _at(length, scores)), default=0.0)) for length in lengths]
    rows = [
        GridRow(
            "full",
            label,
            tuple(cells),
            tuple(len(scores) > 1 and cell == best != _percent(0.0) for cell, best in zip(cells, highest, strict=True)),
        )
        for label, cells in told.items()
    ]
    return Grid(title, "right (%) at length", tuple(map(str, lengths)), tuple(rows))


def receptive_field_grid(analyses: Mapping[str, Mapping[int, AnalysisRow]]) -> Grid:
    """The distance that holds most of the gradient, of each model by length."""
    rows = [row for own in analyses.values() for row in own.values()]
    lengths = sorted({row.length for row in rows})
    share = f"{rows[0].receptive_field_share:.0%}"
    nowhere = (False,) * len(lengths)
    told = {
        label: tuple(str(own[length].receptive_field or "not finite") if length in own else "-" for length in lengths)
        for label, own in analyses.items()
    }
    return Grid(
        f"Receptive field: distance that holds {share} of the gradient",
        "tokens at length",
        tuple(map(str, lengths)),
        tuple(GridRow("full", label, cells, nowhere) for label, cells in told.items()),
    )


def shown(perplexity: float) -> str:
    """A perplexity to four digits or more; `inf` beyond the largest double, `not finite` where the NLL is not."""
    if math.isnan(perplexity):
        return "not finite"
    if perplexity < 100:
        return f"{perplexity:.2f}"
    if perplexity < 1000:
        return f"{perplexity:.1f}"
    return f"{perplexity:.0f}" if perplexity < 100_000 else f"{perplexity:.3g}"


def _at(length: int, scores: Mapping[str, Mapping[int, float]]) -> list[float]:
    return [own[length] for own in scores.values() if length in own]


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return "not finite" if math.isnan(value) else f"{value:.1f}"


def _line_rows(line: Line, comparison: Comparison) -> Iterable[GridRow]:
    lengths = comparison.lengths
    train_length = line.model.train_length
    nowhere = (False,) * len(lengths)
    best = tuple(_is_lowest(line, length, comparison) for length in lengths)
    yield GridRow("full", line.label, tuple(_cell(line.full.get(length)) for length in lengths), best)
    if line.cut:
        cells = tuple(_cell(line.cut.get(length)) for length in lengths)
        yield GridRow("cut", f"context cut to {train_length}", cells, nowhere)
    if train_length in line.full and len(line.full) > 1:
        ratios = (line.ratio(length) for length in lengths)
        cells = tuple(
            "-" if math.isnan(ratio) else f"{ratio:.3f}" if ratio < 10 else f"{ratio:.4g}" for ratio in ratios
        )
        yield GridRow("ratio", f"ratio to {train_length}", cells, nowhere)


def _is_lowest(line: Line, length: int, comparison: Comparison) -> bool:
    others = [other.full[length].value for other in comparison.lines if length in other.full]
    finite = [value for value in others if math.isfinite(value)]
    return len(others) > 1 and length in line.full and line.full[length].value == min(finite, default=math.nan)


def _cell(row: Row | None) -> str:
    return "-" if row is None else shown(row.value)
