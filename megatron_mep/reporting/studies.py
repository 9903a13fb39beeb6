"""A study's summary, as far as a report reads it: means over seeds, as a figure and a table for each way of scoring."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from pydantic import BaseModel, ConfigDict

from megatron_mep.reporting.charts import Axis, Chart, Curve, Point, Style, around
from megatron_mep.reporting.tables import Grid, GridRow, shown

FEW_SEEDS = 3


class Difference(BaseModel):
    """An encoding less the baseline, in nats per token."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    mean: float
    low: float
    high: float
    significant: bool

    def __str__(self) -> str:
        return f"{self.mean:+.3f}{'' if self.significant else ' n.s.'}"


class Cell(BaseModel):
    """An encoding in one way of scoring, over its seeds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    encoding: str
    size: str | None
    train_length: int
    protocol: str
    length: int
    context: str
    stride: int | None
    last_k: int | None
    scored_tokens: int
    scored_hash: str
    mean: float | None
    deviation: float | None
    against_baseline: Difference | None

    @property
    def way(self) -> str:
        """What cells of one table share, in words."""
        of_size = f"{self.size}, " if self.size else ""
        of_tokens = f", last {self.last_k}" if self.last_k else ""
        of_windows = f", stride {self.stride}" if self.protocol == "sliding" else ""
        return f"{of_size}trained at {self.train_length}, {self.protocol}{of_tokens}{of_windows}"


class Summary(BaseModel):
    """All cells of a study."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    study: str
    baseline: str
    seeds: tuple[int, ...]
    missing: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def notes(self) -> list[str]:
        """What is to be kept in mind of it."""
        notes = [f"Not complete: without {', '.join(self.missing)}."] if self.missing else []
        if len(self.seeds) < FEW_SEEDS:
            notes.append(f"{len(self.seeds)} seeds tell little of what training by another seed would give.")
        return notes

    def ways(self) -> Iterator[tuple[str, list[Cell]]]:
        """The cells with all context, by what stands in one table."""
        full = sorted((cell for cell in self.cells if cell.context == "full"), key=lambda cell: cell.way)
        for way, cells in groupby(full, key=lambda cell: cell.way):
            yield way, list(cells)


def study_chart(way: str, cells: Sequence[Cell], style: Mapping[str, Style], name: str) -> Chart:
    """Mean perplexity of every encoding against length."""
    values = [cell.mean for cell in cells if cell.mean is not None]
    encodings = dict.fromkeys(cell.encoding for cell in cells)
    curves = [
        Curve(label, [_point(cell) for cell in _by_length(cells, label).values()], style[label]) for label in encodings
    ]
    ticks = {float(length): str(length) for length in _lengths(cells)}
    marks = {float(cells[0].train_length): "training length"}
    y = Axis("perplexity, mean over seeds", log=True, limits=around(values))
    return Chart(name, way, Axis("length (tokens)", log=True, ticks=ticks), y, curves, marks)


def study_grid(summary: Summary, way: str, cells: Sequence[Cell]) -> Grid:
    """Mean and spread of every encoding, and below it the difference to the baseline."""
    lengths = _lengths(cells)
    rows: list[GridRow] = []
    for label in dict.fromkeys(cell.encoding for cell in cells):
        own = _by_length(cells, label)
        told = tuple(_mean(own[length]) if length in own else "-" for length in lengths)
        rows.append(GridRow("full", label, told, (False,) * len(lengths)))
        found = [own[length].against_baseline if length in own else None for length in lengths]
        if any(found):
            differences = tuple("-" if each is None else str(each) for each in found)
            rows.append(GridRow("ratio", f"less {summary.baseline}", differences, (False,) * len(lengths)))
    caption = (
        f"Mean over seeds {', '.join(map(str, summary.seeds))} ± standard deviation; below it the difference to "
        f"{summary.baseline} in nats per token, negative where the encoding is better; n.s. is not significant."
    )
    title = f"{summary.study}, {way}: {cells[0].scored_tokens:,} tokens, hash {cells[0].scored_hash[:12]}"
    return Grid(title, "perplexity at length", tuple(map(str, lengths)), tuple(rows), caption=caption)


def _lengths(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell.length for cell in cells})


def _by_length(cells: Sequence[Cell], label: str) -> dict[int, Cell]:
    return {cell.length: cell for cell in sorted(cells, key=lambda cell: cell.length) if cell.encoding == label}


def _mean(cell: Cell) -> str:
    if cell.mean is None:
        return "not finite"
    return shown(cell.mean) + ("" if cell.deviation is None else f" ± {cell.deviation:.2g}")


def _point(cell: Cell) -> Point:
    told = [f"± {cell.deviation:.3g} over seeds"] if cell.deviation is not None else []
    if cell.against_baseline is not None:
        found = cell.against_baseline
        told.append(f"to the baseline {found} nats [{found.low:+.3f}, {found.high:+.3f}]")
    return Point(cell.length, math.nan if cell.mean is None else cell.mean, "\n".join(told))
