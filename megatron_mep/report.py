"""A report, composed: rows are read, the encodings of their runs asked for their shapes, and the page is written."""

from collections.abc import Sequence
from pathlib import Path

from megatron_mep.encoding_shapes import shapes_of
from megatron_mep.reporting.report import write_sources
from megatron_mep.reporting.sources import read_sources

MAX_LENGTH = 4096
"""Tokens up to which shapes are drawn."""


def report(results: Sequence[Path], to: Path, command: str) -> list[Path]:
    """Writes the report of results files, run folders and folders of studies; its files."""
    sources = read_sources(results)
    longest = max(record.row.length for record in sources.records)
    return write_sources(sources, to, command, shapes_of(sources, min(longest, MAX_LENGTH)))
