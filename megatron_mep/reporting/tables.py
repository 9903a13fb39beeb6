"""Comparisons as tables: plain text for the terminal, Markdown, CSV, and the grid of strings that all of them show."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron_mep.reporting.comparison import Comparison, Line
from megatron_mep.reporting.records import Row


@dataclass(frozen=True)
class GridRow:
    """A row of a table, ready to be shown."""

    kind: str
    """`full`, `cut` or `ratio`."""
    head: str
    """The line's label, and below it what the other rows are."""
    cells: tuple[str, ...]
    """One a length."""
    best: tuple[bool, ...]
    """Where the cell is the lowest perplexity of its length, all context seen."""


CSV_COLUMNS = (
    *("protocol", "last_k", "scored_tokens", "scored_hash", "tokenizer_hash"),
    *("run", "encoding", "extrapolation", "step", "seed", "train_length", "length", "context", "window", "stride"),
    *("perplexity", "nll", "bits_per_byte", "non_finite", "ratio_to_train_length", "checkpoint", "created"),
)


def grid(comparison: Comparison) -> list[GridRow]:
    """Per line: perplexity with all context, the control, and the ratio to the training length."""
    return [row for line in comparison.lines for row in _line_rows(line, comparison)]


def as_text(comparisons: Sequence[Comparison]) -> str:
    """Tables for the terminal."""
    return "\n".join(_text_table(comparison) for comparison in comparisons)


def as_markdown(comparisons: Sequence[Comparison]) -> str:
    """Tables for a Markdown file, the lowest perplexity of a length in bold."""
    return "\n".join(_markdown_table(comparison) for comparison in comparisons)


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """One record a number, in full precision; what may be compared agrees in `scored_hash` and `tokenizer_hash`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        for line in comparison.lines:
            writer.writerows(_csv_record(row, line) for row in line.measured)
    return text.getvalue()


def shown(perplexity: float) -> str:
    """A perplexity to four digits or more; `inf` beyond the largest double, `not finite` where the NLL is not."""
    if math.isnan(perplexity):
        return "not finite"
    if perplexity < 100:
        return f"{perplexity:.2f}"
    if perplexity < 1000:
        return f"{perplexity:.1f}"
    return f"{perplexity:.0f}" if perplexity < 100_000 else f"{perplexity:.3g}"


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


def _text_table(comparison: Comparison) -> str:
    head = ["perplexity at length", *(str(length) for length in comparison.lengths)]
    rows = [[row.head if row.kind == "full" else f"  {row.head}", *row.cells] for row in grid(comparison)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for first, *cells in [head, ["-" * width for width in widths], *rows]:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    return "\n".join([comparison.title, *comparison.notes, "", *lines, ""])


def _markdown_table(comparison: Comparison) -> str:
    head = ["perplexity at length", *(str(length) for length in comparison.lengths)]
    rule = [":--", *("--:" for _ in comparison.lengths)]
    rows = [
        [_escaped(row.head) if row.kind == "full" else f"*{row.head}*", *_emphasised(row)] for row in grid(comparison)
    ]
    table = [f"| {' | '.join(cells)} |" for cells in [head, rule, *rows]]
    notes = [f"{_escaped(note)}\n" for note in comparison.notes]
    return "\n".join([f"## {comparison.title}\n", *notes, *table, ""])


def _emphasised(row: GridRow) -> list[str]:
    return [f"**{cell}**" if best else cell for cell, best in zip(row.cells, row.best, strict=True)]


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, inside a table too."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>#|" else character for character in text)


def _csv_record(row: Row, line: Line) -> dict[str, object]:
    ratio = line.ratio(row.length) if row.context == "full" else math.nan
    record = row.model_dump() | {"perplexity": row.value, "created": row.created.isoformat()}
    record["extrapolation"] = json.dumps(row.extrapolation) if row.extrapolation else ""
    return record | {"ratio_to_train_length": "" if math.isnan(ratio) else ratio}
