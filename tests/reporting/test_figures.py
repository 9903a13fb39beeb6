"""Figures: every model and length is on them, or is said not to be."""

import math
import re

import numpy as np
import pytest
from matplotlib.lines import Line2D

from megatron_mep.reporting.comparison import Comparison, comparisons
from megatron_mep.reporting.drawing import COLOURS, MARKERS, NARROW_IN, WIDE_IN, inline_svg, png, styles, svg
from megatron_mep.reporting.figures import length_curves, training_curves, undrawn
from megatron_mep.reporting.records import TrainingPoint
from tests.reporting.example import as_read, curve

LENGTHS = (128, 256, 512)


def compared(*perplexities: float, name: str = "mep") -> list[Comparison]:
    return comparisons(as_read(*curve(name, dict(zip(LENGTHS, perplexities, strict=True)))))


def points_of(line: Line2D) -> tuple[list[float], list[float]]:
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def test_a_figure_names_models_lengths_and_multiples() -> None:
    both = comparisons(
        as_read(*curve("$mep$ <1>", dict.fromkeys(LENGTHS, 30.0)), *curve("_alibi", dict.fromkeys(LENGTHS, 31.0)))
    )
    drawn = svg(length_curves(both, styles(["$mep$ <1>", "_alibi"])))
    for text in (
        "$mep$ &lt;1&gt;",
        "_alibi",
        *map(str, LENGTHS),
        "1\N{MULTIPLICATION SIGN}",
        "4\N{MULTIPLICATION SIGN}",
    ):
        assert re.search(rf">\s*{re.escape(text)}\s*<", drawn), text


def test_lines_carry_the_measured_values() -> None:
    figure = length_curves(compared(31.0, 29.0, 28.0), styles(["mep"]))
    (axes,) = figure.axes
    full, cut, _ = axes.get_lines()
    for line, values in ((full, [31.0, 29.0, 28.0]), (cut, [31.0, 30.5, 30.5])):
        lengths, drawn = points_of(line)
        assert lengths == [128, 256, 512]
        assert drawn == pytest.approx(values)


def test_a_length_that_is_not_finite_leaves_a_gap() -> None:
    drawn = length_curves(compared(31.0, math.inf, 28.0), styles(["mep"])).axes[0].get_lines()[0]
    assert points_of(drawn)[1][1] == math.inf


@pytest.mark.parametrize(("worst", "panels"), [(60.0, 1), (300.0, 2)])
def test_a_model_that_breaks_down_brings_a_detail_of_the_others(worst: float, panels: int) -> None:
    for width_in in (WIDE_IN, NARROW_IN):
        assert len(length_curves(compared(31.0, 29.0, worst), styles(["mep"]), width_in).axes) == panels


@pytest.mark.parametrize("values", [(31.0, math.inf, math.nan), (math.inf, math.inf, math.nan)])
def test_what_cannot_be_drawn_is_said(values: tuple[float, float, float]) -> None:
    (comparison,) = compared(*values)
    assert png(length_curves([comparison], styles(["mep"]))).startswith(b"\x89PNG")
    said = undrawn(comparison)
    assert "mep at 256 (beyond the largest double)" in said
    assert "mep at 512 (the NLL is not finite)" in said
    assert len(said) == sum(not math.isfinite(value) for value in values)


def test_the_same_rows_give_the_same_file_with_no_address_in_it() -> None:
    first, second = (svg(length_curves(compared(31.0, 29.0, 28.0), styles(["mep"]))) for _ in range(2))
    assert first == second
    namespaces = set(re.findall(r'xmlns[:\w]*="([^"]+)"', first))
    assert set(re.findall(r"https?://[^\s\"<]+", first)) - namespaces == {
        "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd"
    }


def test_inline_figures_share_no_id() -> None:
    figures = [inline_svg(length_curves(compared(31.0, 29.0, 28.0), styles(["mep"])), name, "a <b>") for name in "xy"]
    ids = [set(re.findall(r'\bid="([^"]+)"', figure)) for figure in figures]
    assert ids[0].isdisjoint(ids[1])
    for figure, own in zip(figures, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', figure)) <= own, "every reference is to an own id"
        assert figure.startswith('<svg role="img" aria-label="a &lt;b&gt;"')


def test_styles_do_not_repeat_before_all_are_used() -> None:
    names = [str(number) for number in range(len(COLOURS) * len(MARKERS))]
    assert len(set(styles(names).values())) == len(names)


def test_a_long_training_curve_is_thinned_and_skips_what_is_not_finite() -> None:
    losses = [math.nan, None, *(5.0 for _ in range(3998))]
    points = [TrainingPoint(step=step, consumed_tokens=64 * step, loss=loss) for step, loss in enumerate(losses)]
    points.append(TrainingPoint(step=4000, consumed_tokens=256_000, validation_loss=6.0))
    training, validation = training_curves({"mep": points}, styles(["mep"])).axes[0].get_lines()
    assert points_of(training)[1] == [5.0] * 400
    assert points_of(validation) == ([256_000], [6.0])
