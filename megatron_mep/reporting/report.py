"""Writes a report: page, figures, tables and rows in one folder, all from the same rows."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from megatron_mep.reporting.comparison import comparisons
from megatron_mep.reporting.drawing import png, styles, svg
from megatron_mep.reporting.figures import length_curves
from megatron_mep.reporting.page import Provenance, html_page
from megatron_mep.reporting.sources import read_sources
from megatron_mep.reporting.tables import as_csv, as_markdown, as_text

PAGE = "index.html"
TABLE = "table.txt"


def write_report(results: Sequence[Path], to: Path, command: str) -> list[Path]:
    """The report's files, replacing those of an earlier one.

    Args:
        results: Results files and run folders.
        to: The folder to write to.
        command: The command line, which the page states.
    """
    sources = read_sources(results)
    compared = comparisons(record.row for record in sources.records)
    style = styles([*(line.label for comparison in compared for line in comparison.lines), *sources.metrics])
    provenance = Provenance(command, datetime.now(UTC), sources.files, _versions())
    curves = length_curves([each for each in compared if len(each.lengths) > 1] or compared, style)
    contents = {
        PAGE: html_page(compared, sources.metrics, sources.settings, style, provenance).encode(),
        "length_curves.svg": svg(curves).encode(),
        "length_curves.png": png(curves),
        TABLE: as_text(compared).encode(),
        "table.md": as_markdown(compared).encode(),
        "table.csv": as_csv(compared).encode(),
        "rows.jsonl": "".join(f"{record.line}\n" for record in sources.records).encode(),
    }
    to.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (to / name).write_bytes(content)
    return [to / name for name in contents]


def _versions() -> dict[str, str]:
    """Of the programs that write a report."""
    return {"Python": platform.python_version(), **{name: _version(name) for name in ("megatron_mep", "matplotlib")}}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(run from its source folder)"
