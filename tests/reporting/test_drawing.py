"""The same data drawn twice: into files by matplotlib, and for the page by Plotly."""

import json
import math
import re

import numpy as np
import pytest

from megatron_mep.reporting.charts import Axis, Chart, Curve, Drawable, HeatMap, Point, styles
from megatron_mep.reporting.drawing import png, svg
from megatron_mep.reporting.interactive import interactive
from megatron_mep.reporting.printed import printed

STRANGE = "$mep$ <1> </script>"
STYLE = styles({STRANGE: 1, "_alibi": 2})


def chart(detail: bool = False) -> Chart:
    return Chart(
        "curves",
        "Curves & more",
        Axis("length", log=True, ticks={128.0: "128\n1×", 256.0: "256"}),  # noqa: RUF001
        Axis("perplexity", log=True, limits=(1.0, 100.0)),
        [
            Curve(STRANGE, [Point(128, 31.0, "a\nb"), Point(256, math.inf)], STYLE[STRANGE]),
            Curve(STRANGE, [Point(128, 31.0), Point(256, 30.0)], STYLE[STRANGE], "dashed"),
            Curve("_alibi", [Point(128, 32.0), Point(256, 29.0)], STYLE["_alibi"]),
        ],
        {128.0: "training length"},
        (20.0, 40.0) if detail else None,
    )


def heat_map(rows: int = 2) -> HeatMap:
    cells = [[100.0, None], *([[50.0, math.nan]] * (rows - 1))]
    names = [f"{row}%" for row in range(rows)]
    told = [["x<y", ""]] * rows
    return HeatMap(
        "map", "Map", "length", "depth", ["128", "256"], names, cells, told, "right (%)", 100.0, written=True
    )


def test_a_file_names_curves_ticks_and_axes() -> None:
    drawn = svg(printed(chart()))
    for text in ("$mep$ &lt;1&gt; &lt;/script&gt;", "_alibi", "128", "1\N{MULTIPLICATION SIGN}", "256", "perplexity"):
        assert re.search(rf">\s*{re.escape(text)}\s*<", drawn), text


def test_lines_in_a_file_carry_the_values() -> None:
    (axes,) = printed(chart()).axes
    lines = [np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()]
    assert lines[:3] == [[31.0, math.inf], [31.0, 30.0], [32.0, 29.0]]


def test_a_detail_stands_beside_the_whole() -> None:
    whole, detail = printed(chart(detail=True)).axes
    assert (whole.get_ylim(), detail.get_ylim()) == ((1.0, 100.0), (20.0, 40.0))


@pytest.mark.parametrize("drawable", [chart(), heat_map()])
def test_the_same_data_give_the_same_file_with_no_address_in_it(drawable: Drawable) -> None:
    first, second = (svg(printed(drawable)) for _ in range(2))
    assert first == second
    namespaces = set(re.findall(r'xmlns[:\w]*="([^"]+)"', first))
    assert set(re.findall(r"https?://[^\s\"<]+", first)) - namespaces == {
        "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd"
    }
    assert png(printed(drawable)).startswith(b"\x89PNG")


def test_the_page_has_the_same_values_with_gaps_where_they_are_not_finite() -> None:
    drawn = json.loads(interactive(chart()).json)["data"]
    assert [trace["y"] for trace in drawn] == [[31.0, None], [31.0, 30.0], [32.0, 29.0]]
    assert drawn[0]["customdata"] == ["a<br>b", ""]
    assert [trace["showlegend"] for trace in drawn] == [True, False, True]
    (shown,) = json.loads(interactive(heat_map()).json)["data"]
    assert shown["z"] == [[100.0, None], [50.0, None]]


def test_names_on_the_page_are_escaped_and_end_no_script() -> None:
    text = interactive(chart()).json
    assert "<" not in text
    assert json.loads(text)["data"][0]["name"] == "$mep$ &lt;1&gt; &lt;/script&gt;"


def test_a_detail_is_a_button_of_the_page() -> None:
    (menu,) = json.loads(interactive(chart(detail=True)).json)["layout"]["updatemenus"]
    ranges = [10 ** np.array(button["args"][0]["yaxis.range"]) for button in menu["buttons"]]
    np.testing.assert_allclose(ranges, [[1.0, 100.0], [20.0, 40.0]])
    assert "updatemenus" not in json.loads(interactive(chart()).json)["layout"]


def test_a_figure_grows_with_its_legend_and_its_rows() -> None:
    curves = [Curve(f"a model with a long name {number}", [Point(1, 1)], STYLE["_alibi"]) for number in range(20)]
    many = interactive(Chart("many", "Many", Axis("x"), Axis("y"), curves))
    few = interactive(chart())
    assert many.wide_px > few.wide_px
    assert many.narrow_px - few.narrow_px >= 300, "a line for each on a telephone"
    assert interactive(heat_map(40)).wide_px > interactive(heat_map()).wide_px
