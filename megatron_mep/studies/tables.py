"""A study's summary as Markdown for people and as CSV for programs."""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import groupby

from megatron_mep.studies.summary import Cell, Difference, Summary

CSV_COLUMNS = (
    *("size", "train_length", "protocol", "context", "length", "window", "stride", "last_k"),
    *("encoding", "num_seeds", "mean", "deviation", "bits_per_byte"),
    *("difference", "difference_low", "difference_high", "significant", "paired_seeds", "documents"),
    *("scored_tokens", "scored_hash"),
)
NOT_SIGNIFICANT = "n.s."
FEW_SEEDS = 3


def as_csv(summary: Summary) -> str:
    """One record a cell, in full precision."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_record(cell) for cell in summary.cells)
    return text.getvalue()


def as_markdown(summary: Summary) -> str:
    """A table for each way of scoring, and what its numbers say and do not say."""
    parts = [f"# {summary.study}\n", *_missing(summary), *_reading(summary)]
    for _, cells in groupby(sorted(summary.cells, key=_order), key=_table):
        parts += _section(summary, list(cells))
    return "\n".join(parts)


def _reading(summary: Summary) -> Iterator[str]:
    level, several = f"{summary.confidence:.0%}", summary.comparisons_at_once
    yield (
        f"Perplexity: mean over seeds {', '.join(map(str, summary.seeds))} ± standard deviation. Below it the "
        f"difference to {summary.baseline} in nats per token, paired by seed and document, negative where the encoding "
        f"is better, with its {level} interval by bootstrap over seeds and documents ({summary.resamples:,} draws).\n"
    )
    yield (
        f"**{NOT_SIGNIFICANT}**: not significant. As {several} encodings are compared at once, a difference counts as "
        f"significant where the interval at the level 1 - {1 - summary.confidence:.2g}/{several} leaves 0 out.\n"
    )
    if len(summary.seeds) < FEW_SEEDS:
        yield (
            f"{len(summary.seeds)} seeds tell little of what training by another seed would give: what is significant "
            "here is so for the text that was scored and the seeds that were trained.\n"
        )


def _missing(summary: Summary) -> Iterator[str]:
    if summary.missing:
        yield f"**Not complete**: without {', '.join(summary.missing)}.\n"


def _order(cell: Cell) -> tuple[str, int, str, str]:
    return cell.size or "", cell.train_length, cell.protocol, "0" if cell.context == "full" else cell.context


def _table(cell: Cell) -> tuple[str | None, int, str, str]:
    return cell.size, cell.train_length, cell.protocol, cell.context


def _section(summary: Summary, cells: Sequence[Cell]) -> Iterator[str]:
    first = cells[0]
    lengths = sorted({cell.length for cell in cells})
    labels = list(dict.fromkeys(cell.encoding for cell in cells))
    at = {(cell.encoding, cell.length): cell for cell in cells}
    yield f"## {_title(first)}\n"
    yield f"{first.scored_tokens:,} tokens, hash {first.scored_hash[:12]}.\n"
    yield _line(["perplexity at length", *map(str, lengths)])
    yield _line([":--", *("--:" for _ in lengths)])
    for label in labels:
        own = [at.get((label, length)) for length in lengths]
        yield _line([label, *(_mean(cell) for cell in own)])
        if label != summary.baseline:
            yield _line([f"*less {summary.baseline}*", *(_difference(cell) for cell in own)])
    yield ""
    yield from _conclusions(summary, labels, lengths, at)


def _conclusions(
    summary: Summary, labels: Sequence[str], lengths: Sequence[int], at: dict[tuple[str, int], Cell]
) -> Iterator[str]:
    """What is not significant, in words."""
    for label in labels:
        found = {length: at[label, length].against_baseline for length in lengths if (label, length) in at}
        alike = [str(length) for length, each in found.items() if each is not None and not each.significant]
        unpaired = [str(length) for length, each in found.items() if each is None]
        if label != summary.baseline and alike:
            yield f"* {label}: not significantly different from {summary.baseline} at {', '.join(alike)}."
        if label != summary.baseline and unpaired:
            yield f"* {label}: nothing to compare with {summary.baseline} at {', '.join(unpaired)}."
    yield ""


def _title(cell: Cell) -> str:
    of_size = f"{cell.size}, " if cell.size else ""
    how = f", last {cell.last_k}" if cell.last_k else f", stride {cell.stride}" if cell.protocol == "sliding" else ""
    context = f", context cut to {cell.window}" if cell.context == "cut" else ""
    return f"{of_size}trained at {cell.train_length}: {cell.protocol}{how}{context}"


def _mean(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if cell.mean is None:
        return "not finite"
    return f"{cell.mean:.4g}" + ("" if cell.deviation is None else f" ± {cell.deviation:.2g}")


def _difference(cell: Cell | None) -> str:
    found = cell.against_baseline if cell else None
    if found is None:
        return "-"
    told = f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return told if found.significant else f"{told} {NOT_SIGNIFICANT}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _record(cell: Cell) -> dict[str, object]:
    return {**cell.model_dump(), "num_seeds": len(cell.seeds), **_compared(cell.against_baseline)}


def _compared(found: Difference | None) -> dict[str, object]:
    if found is None:
        return {}
    return {
        "difference": found.mean,
        "difference_low": found.low,
        "difference_high": found.high,
        "significant": found.significant,
        "paired_seeds": found.num_seeds,
        "documents": found.num_documents,
    }
