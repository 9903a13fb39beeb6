"""Writes a report: page, figures, tables and rows in one folder, all from the same rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron_mep.reporting.contents import Contents, contents_of
from megatron_mep.reporting.drawing import png, svg
from megatron_mep.reporting.numbers import analyses_csv, perplexities_csv, probes_csv
from megatron_mep.reporting.page import html_page
from megatron_mep.reporting.printed import printed
from megatron_mep.reporting.provenance import Provenance
from megatron_mep.reporting.rows import AnalysisRow, ProbeRow
from megatron_mep.reporting.shapes import Shape
from megatron_mep.reporting.sources import Sources, read_sources
from megatron_mep.reporting.writing import as_latex, as_markdown, as_text

PAGE = "index.html"
TABLE = "table.txt"
FIGURES = "figures"


def write_report(results: Sequence[Path], to: Path, command: str, shapes: Sequence[Shape] = ()) -> list[Path]:
    """The report's files, replacing those of an earlier one.

    Args:
        results: Results files, run folders and folders of studies.
        to: The folder to write to.
        command: The command line, which the page states.
        shapes: Those of the encodings of the runs, as they are drawn.
    """
    return write_sources(read_sources(results), to, command, shapes)


def write_sources(sources: Sources, to: Path, command: str, shapes: Sequence[Shape] = ()) -> list[Path]:
    """What `write_report` does, of sources that were read."""
    contents = contents_of(sources, shapes)
    places = {drawable.name: f"{FIGURES}/{drawable.name}" for drawable in contents.drawables}
    page = html_page(contents, sources, Provenance.now(command, sources.files), places)
    files = {PAGE: page.encode(), **_tables(contents, sources), **_figures(contents, places)}
    for name, content in files.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content)
    return [to / name for name in files]


def _tables(contents: Contents, sources: Sources) -> dict[str, bytes]:
    texts = {
        TABLE: as_text(contents.grids),
        "table.md": as_markdown(contents.grids),
        "table.tex": as_latex(contents.grids),
        "table.csv": perplexities_csv(contents.comparisons),
        "probes.csv": probes_csv(sources.rows(ProbeRow)),
        "analyses.csv": analyses_csv(sources.rows(AnalysisRow)),
        "rows.jsonl": "".join(f"{record.line}\n" for record in sources.records),
    }
    return {name: text.encode() for name, text in texts.items()}


def _figures(contents: Contents, places: Mapping[str, str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for drawable in contents.drawables:
        figure = printed(drawable)
        files[f"{places[drawable.name]}.svg"] = svg(figure).encode()
        files[f"{places[drawable.name]}.png"] = png(figure)
    return files
