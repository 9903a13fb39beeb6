"""Length figures as data: every model and length is on them, or is said not to be."""

import math
from typing import Any

import pytest

from megatron_mep.evaluation.rows import ResultRow
from megatron_mep.reporting.charts import COLOURS, MARKERS, Chart, powers, styles
from megatron_mep.reporting.comparison import Comparison, comparisons
from megatron_mep.reporting.length_figures import length_chart, position_chart, undrawn
from tests.reporting.example import as_read, curve, result

LENGTHS = (128, 256, 512)
STYLE = styles({"mep": "mep", "rope": "rope"})


def compared(*perplexities: float) -> Comparison:
    (comparison,) = comparisons(as_read(*curve("mep", dict(zip(LENGTHS, perplexities, strict=True)))))
    return comparison


def chart_of(*perplexities: float) -> Chart:
    return length_chart(compared(*perplexities), STYLE, "curves")


def test_curves_carry_the_measured_values() -> None:
    full, cut = chart_of(31.0, 29.0, 28.0).curves
    for drawn, kind, values in ((full, "marked", [31.0, 29.0, 28.0]), (cut, "dashed", [31.0, 30.5, 30.5])):
        assert (drawn.name, drawn.kind) == ("mep", kind)
        assert [point.x for point in drawn.points] == [128, 256, 512]
        assert [point.y for point in drawn.points] == pytest.approx(values)


def test_ticks_are_lengths_and_their_multiples_of_the_training_length_which_is_marked() -> None:
    chart = chart_of(31.0, 29.0, 28.0)
    assert chart.x.ticks == {128: "128\n1×", 256: "256\n2×", 512: "512\n4×"}  # noqa: RUF001
    assert chart.marks == {128.0: "training length"}


def test_a_point_tells_interval_bits_ratio_and_tokens() -> None:
    interval: dict[str, Any] = {"perplexity_low": 27.0, "perplexity_high": 31.0, "bits_per_byte": 1.5}
    (comparison,) = comparisons(as_read(result("mep", 128, 30.0), result("mep", 256, 29.0, **interval)))
    (drawn,) = length_chart(comparison, STYLE, "curves").curves
    assert drawn.points[0].told == "ratio to 128: 1.000\n4,096 scored tokens"
    assert drawn.points[1].told.splitlines() == [
        "95 % interval 27.00 to 31.00",
        "bits per byte 1.5000",
        "ratio to 128: 0.967",
        "4,096 scored tokens",
    ]


def test_a_length_that_is_not_finite_leaves_a_gap() -> None:
    assert chart_of(31.0, math.inf, 28.0).curves[0].points[1].y == math.inf


def test_limits_enclose_what_is_finite() -> None:
    limits = chart_of(31.0, math.inf, 28.0).y.limits
    assert limits is not None
    assert 20 < limits[0] < 28 < 31 < limits[1] < 40
    assert chart_of(math.nan, math.inf, math.nan).y.limits is not None, "the control is drawn"


def test_a_model_that_breaks_down_brings_a_detail_of_the_others() -> None:
    assert chart_of(31.0, 29.0, 60.0).detail is None
    detail = chart_of(31.0, 29.0, 300.0).detail
    assert detail is not None
    assert 25 < detail[0] < 29 < 31 < detail[1] < 35


@pytest.mark.parametrize("values", [(31.0, math.inf, math.nan), (math.inf, math.inf, math.nan)])
def test_what_cannot_be_drawn_is_said(values: tuple[float, float, float]) -> None:
    said = undrawn(compared(*values))
    assert "mep at 256 (beyond the largest double)" in said
    assert "mep at 512 (the NLL is not finite)" in said
    assert len(said) == sum(not math.isfinite(value) for value in values)


def by_position(run: str, length: int, *nll: float | None, protocol: str = "per-position") -> ResultRow:
    ends = tuple(length * place // len(nll) for place in range(1, len(nll) + 1))
    return result(run, length, 30.0, protocol=protocol, position_ends=ends, position_nll=nll)


def test_loss_by_position_is_that_of_the_longest_windows() -> None:
    rows = as_read(
        by_position("mep", 256, 6.0, None),
        by_position("mep", 128, 7.0, 7.0),
        by_position("mep", 512, 8.0, 8.0, protocol="blocks"),
        by_position("rope", 64, 5.0, protocol="blocks"),
        result("nope", 128, 30.0),
    )
    chart = position_chart(rows, STYLE, "positions")
    assert chart is not None
    assert [drawn.name for drawn in chart.curves] == ["mep", "rope"]
    first, second = chart.curves[0].points
    assert (first.x, first.y, second.x) == (128, 6.0, 256)
    assert math.isnan(second.y)
    assert second.told == "positions 129 to 256, windows of 256"


def test_without_losses_by_position_there_is_no_figure() -> None:
    assert position_chart(as_read(result("mep", 128, 30.0)), STYLE, "positions") is None


def test_seeds_share_a_colour_and_no_two_are_drawn_alike() -> None:
    kinds = {f"{kind} {seed}": kind for kind in range(len(COLOURS)) for seed in range(len(MARKERS))}
    drawn = styles(kinds)
    assert len(set(drawn.values())) == len(kinds)
    assert {drawn[f"0 {seed}"].colour for seed in range(len(MARKERS))} == {COLOURS[0]}
    many = styles({str(kind): kind for kind in range(2 * len(COLOURS))})
    assert len(set(many.values())) == len(many), "colours that come again have another marker"


def test_ticks_of_places_are_powers() -> None:
    assert list(powers(128)) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert list(powers(4096).values()) == ["1", "4", "16", "64", "256", "1024", "4096"]
