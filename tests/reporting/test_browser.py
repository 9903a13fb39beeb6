"""The page in a browser, on a screen and on a telephone: figures are drawn and answer, nothing is fetched."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from megatron_mep.reporting.report import write_report
from tests.reporting.example import shape, summary_file, trained_shape, whole_run

api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

FIGURES = {
    *("study_1", "length_curves", "loss_by_position", "retrieval_1_1", "retrieval_1_2", "formal_2"),
    *("receptive_field", "attention_1", "attention_2", "shape_1", "shape_2"),
    *("training_loss", "training_positions_1", "training_positions_2"),
}
TIMEOUT_MS = 60_000


@dataclass
class Opened:
    """The page in one window, and what the browser had to say of it."""

    page: "api.Page"
    width: int
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    for folder, run in (("mep", "mep"), ("rope", "rope<b>&amp;")):
        whole_run(root / folder, run)
    summary_file(root)
    write_report([root], root / "out", "mep report", [shape("mep"), trained_shape()])
    return root / "out" / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator["api.Browser"]:
    with api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=[(1280, False), (390, True)], ids=["screen", "telephone"])
def opened(request: pytest.FixtureRequest, browser: "api.Browser", file: Path) -> Iterator[Opened]:
    width, is_telephone = request.param
    window = {"viewport": {"width": width, "height": 844}, "is_mobile": is_telephone, "has_touch": is_telephone}
    context = browser.new_context(**window)
    context.set_default_timeout(TIMEOUT_MS)
    found = Opened(context.new_page(), width)
    found.page.on("console", lambda message: found.console.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.console.append(f"error: {error}"))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(file.as_uri())
    for figure in found.page.locator(".plot").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for(state="attached")
    yield found
    context.close()


def middle_of(element: "api.Locator") -> tuple[float, float]:
    box = element.bounding_box()
    assert box is not None, "it is drawn"
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_every_figure_is_drawn(opened: Opened) -> None:
    figures = opened.page.locator(".plot").all()
    assert {figure.get_attribute("id") for figure in figures} == FIGURES
    for figure in figures:
        drawn = figure.locator(".scatterlayer .trace path, .heatmaplayer image")
        assert drawn.count() > 0, figure.get_attribute("id")


def test_nothing_is_fetched_and_nothing_goes_wrong(opened: Opened, file: Path) -> None:
    assert opened.requests == [file.as_uri()]
    assert opened.console == []


def test_no_figure_offers_to_be_sent_away(opened: Opened) -> None:
    titles = opened.page.locator("#length_curves .modebar-btn").evaluate_all("(all) => all.map((a) => a.dataset.title)")
    offered = [] if opened.width < 600 else ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]
    assert titles == offered


def test_the_page_is_as_wide_as_the_window_and_no_figure_is_cut_off(opened: Opened) -> None:
    assert opened.page.evaluate("document.documentElement.scrollWidth") == opened.width
    outside = opened.page.evaluate(
        """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
          const frame = plot.getBoundingClientRect();
          return [...plot.querySelectorAll("text")].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1
                                 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
          }).map((text) => `${plot.id}: ${text.textContent}`);
        })"""
    )
    assert outside == []


def test_text_is_large_enough_to_be_read(opened: Opened) -> None:
    smallest = opened.page.evaluate(
        """() => Math.min(...[...document.querySelectorAll(".plot text, p, td, th, dd, a")]
          .filter((text) => text.textContent.trim())
          .map((text) => Number.parseFloat(getComputedStyle(text).fontSize)))"""
    )
    assert smallest >= 12


def test_a_point_tells_its_model_length_and_tokens(opened: Opened) -> None:
    figure = opened.page.locator("#length_curves")
    figure.evaluate("(place) => place.scrollIntoView({block: 'center'})")
    x, y = middle_of(figure.locator(".scatterlayer .trace").first.locator(".points path").nth(1))
    if opened.width < 600:
        opened.page.touchscreen.tap(x, y)
    else:
        opened.page.mouse.move(x - 20, y)
        opened.page.mouse.move(x, y)
    told = figure.locator(".hoverlayer .hovertext")
    told.first.wait_for()
    for part in ("length (tokens) 256", "perplexity 29", "4,096 scored tokens"):
        assert part in (told.first.text_content() or ""), part


def test_a_name_in_the_legend_switches_its_curves_off(opened: Opened) -> None:
    figure = opened.page.locator("#length_curves")
    figure.evaluate("(place) => place.scrollIntoView({block: 'center'})")
    drawn = figure.locator(".scatterlayer .trace")
    before = drawn.count()
    opened.page.mouse.click(*middle_of(figure.locator(".legendtoggle").nth(1)))
    opened.page.wait_for_function(
        "(before) => document.querySelectorAll('#length_curves .scatterlayer .trace').length < before", arg=before
    )
    assert drawn.count() == before // 2


def test_names_are_shown_as_they_are(opened: Opened) -> None:
    assert opened.page.locator("#length_curves .legendtext").all_text_contents() == ["mep", "rope<b>&amp;"]


def test_a_table_is_sorted_by_the_column_that_is_asked_for(opened: Opened) -> None:
    table = opened.page.locator("table.sortable").nth(1)
    heads = table.locator("tr.full th")
    assert heads.all_text_contents() == ["mep", "rope<b>&amp;"]
    button = table.locator("thead button").first
    for way, expected in (("ascending", ["mep", "rope<b>&amp;"]), ("descending", ["rope<b>&amp;", "mep"])):
        button.click()
        assert table.locator("thead th").first.get_attribute("aria-sort") == way
        assert heads.all_text_contents() == expected
    rows = table.locator("tbody").first.locator("tr").evaluate_all("(rows) => rows.map((row) => row.className)")
    assert rows == ["full", "cut", "ratio"], "what is of a model stays with it"
