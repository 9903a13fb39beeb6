"""The whole report from run folders: complete, self-contained, and safe from names that look like HTML."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.evaluation.rows import append_rows, read_rows
from megatron_mep.reporting.interactive import library
from megatron_mep.reporting.report import write_report
from tests.reporting.example import curve, probe, result, run_folder, shape

FIGURES = ("length_curves", "shape_1", "training_loss")
EVIL = "</script><script>alert('x')</script>&\"'"
VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Checks that elements nest, and gathers attributes, visible text, and what stands in style and script elements."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.sources: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes what it opened"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.text.append(data.strip())
        elif self.open:
            self.sources.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    folders = [
        run_folder(root / "mep", curve("mep", {128: 31.0, 256: 29.0, 2048: 28.0})),
        run_folder(root / "evil", curve(EVIL, {128: 32.0, 256: 300.0}, encoding_options={"note": EVIL})),
    ]
    written = write_report(folders, root / "out", f"mep report {EVIL}", [shape(EVIL, untrained=f"{EVIL} is not there")])
    tables = ["table.txt", "table.md", "table.tex", "table.csv", "probes.csv", "analyses.csv", "rows.jsonl"]
    figures = [f"figures/{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
    assert [str(path.relative_to(root / "out")) for path in written] == ["index.html", *tables, *figures]
    assert all(path.stat().st_size for path in written)
    return root


def page_of(report: Path) -> Page:
    return Page((report / "out" / "index.html").read_text())


def test_the_page_needs_nothing_from_outside(report: Path) -> None:
    page = page_of(report)
    for tag, name, value in page.attributes:
        assert tag not in {"link", "img", "iframe"}, tag
        assert name != "src", f"{tag} {name}={value}"
        if name == "href":
            assert value.startswith("#"), value
        else:
            assert "//" not in value, f"{tag} {name}={value}"
    ours = [source for source in page.sources if source != library()]
    assert len(ours) == len(page.sources) - 1, "the library stands in the page once"
    for source in ours:
        assert not re.search(r"@import|url\(|https?://", source)


def test_a_name_that_looks_like_html_makes_no_element(report: Path) -> None:
    scripts = [kind for tag, name, kind in page_of(report).attributes if tag == "script" and name == "type"]
    assert scripts == ["application/json"] * len(FIGURES)
    assert len(page_of(report).sources) == len(FIGURES) + 3, "style, library and the page's own script"


def test_links_lead_somewhere(report: Path) -> None:
    page = page_of(report)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {value[1:] for _, name, value in page.attributes if name in {"href", "xlink:href"}}
    assert targets <= set(ids)


def test_the_page_shows_every_run_length_and_number(report: Path) -> None:
    text = page_of(report).text
    for shown in ("mep", EVIL, "128", "256", "2048", "31.00", "29.00", "28.00", "32.00", "300.0", "0.935"):
        assert shown in text, shown


def test_the_page_holds_settings_command_and_provenance(report: Path) -> None:
    text = page_of(report).text
    assert "model:\n  encoding: {name: mep}  # <i>as resolved</i>" in text
    assert f"mep report {EVIL}" in text
    for folder in ("mep", "evil"):
        for file in ("evaluation/lengths.jsonl", "metrics.jsonl", "run.yaml"):
            assert str(report / folder / file) in text
    assert f"Drawn as before training, which moves them: {EVIL} of mep ({EVIL} is not there)." in text


def test_the_rows_of_a_report_are_those_it_was_made_from(report: Path) -> None:
    read = [read_rows(report / name / "evaluation" / "lengths.jsonl") for name in ("mep", "evil")]
    assert read_rows(report / "out" / "rows.jsonl") == [*read[0], *read[1]]


def test_a_report_of_a_reports_rows_has_the_same_tables(report: Path, tmp_path: Path) -> None:
    write_report([report / "out" / "rows.jsonl"], tmp_path, "again")
    for name in ("table.md", "table.tex", "table.csv", "figures/length_curves.svg"):
        assert (tmp_path / name).read_bytes() == (report / "out" / name).read_bytes()


def test_a_single_length_makes_a_report_too(tmp_path: Path) -> None:
    append_rows(tmp_path / "rows.jsonl", [result("mep", 128, 30.0)])
    write_report([tmp_path / "rows.jsonl"], tmp_path / "out", "small")
    assert "30.00" in (tmp_path / "out" / "index.html").read_text()
    assert not (tmp_path / "out" / "figures").exists(), "one length is no curve"


def test_rows_of_probes_alone_make_a_report_too(tmp_path: Path) -> None:
    append_rows(tmp_path / "rows.jsonl", [probe("mep", 128, 75.0)])
    write_report([tmp_path / "rows.jsonl"], tmp_path / "out", "probes")
    text = page_of(tmp_path).text
    assert "Retrieval: passkey" in text
    assert "75.0" in text


def test_models_of_one_name_keep_their_labels_in_every_figure(tmp_path: Path) -> None:
    told: dict[str, Any] = {"position_ends": (1, 128), "position_nll": (6.0, 5.0), "encoding_options": {"width": 4.0}}
    rows = [result("mep", 128, 30.0, minutes=5), result("mep", 128, 31.0, **told)]
    probes = [probe("mep", 128, 75.0, encoding_options=row.encoding_options) for row in rows]
    append_rows(tmp_path / "rows.jsonl", [*rows, *probes])
    write_report([tmp_path / "rows.jsonl"], tmp_path / "out", "namesakes")
    figure = (tmp_path / "out" / "figures" / "loss_by_position.svg").read_text()
    assert "mep (2)" in figure
    assert "mep (1)" not in figure


def test_an_error_leaves_no_half_report(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"run": "mep"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: must be a result row"):
        write_report([tmp_path / "rows.jsonl"], tmp_path / "out", "broken")
    assert not (tmp_path / "out").exists()
