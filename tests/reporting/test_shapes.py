"""Figures of encodings: a curve of each head, what it was before training, and what is not drawn."""

from megatron_mep.reporting.printed import printed
from megatron_mep.reporting.shapes import shape_chart, told_of
from tests.reporting.example import shape, trained_shape


def test_a_trained_head_has_a_dashed_curve_of_what_it_was_before() -> None:
    chart = shape_chart(trained_shape(), "shape")
    assert chart.title == "fire of mep, layer 2 of 3, after step 8"
    kinds = [(curve.name, curve.kind, [point.y for point in curve.points]) for curve in chart.curves]
    assert kinds == [
        ("head 1", "plain", [1.0, 0.5, 0.1]),
        ("head 1", "dashed", [1.0, 0.4, 0.2]),
        ("head 2", "plain", [1.0, 0.9, 0.7]),
        ("head 2", "dashed", [1.0, 0.8, 0.6]),
    ]
    assert [curve.style for curve in chart.curves[::2]] == [curve.style for curve in chart.curves[1::2]]
    assert {point.told for curve in chart.curves[1::2] for point in curve.points} == {"before training"}
    (legend,) = printed(chart).legends
    assert [text.get_text() for text in legend.get_texts()] == ["head 1", "head 2", "before training"]


def test_what_is_not_trained_is_one_curve_of_each_head() -> None:
    chart = shape_chart(shape(), "shape")
    assert chart.title == "mep of mep"
    assert [(curve.name, curve.kind) for curve in chart.curves] == [("head 1", "plain"), ("head 2", "plain")]
    (legend,) = printed(chart).legends
    assert [text.get_text() for text in legend.get_texts()] == ["head 1", "head 2"]


def test_what_is_not_drawn_is_told_once_with_the_reason() -> None:
    of_seeds = [shape("fire", ("a", "b", "c"), trained=f"layer {layer} of 2, after step 8") for layer in (1, 2)]
    untrained = [shape("t5", ("d",), untrained="d is not there"), shape("kerple", ("e",), untrained="e is damaged")]
    assert list(told_of([shape(), *of_seeds, *untrained])) == [
        "Drawn as before training, which moves them: t5 of d (d is not there); kerple of e (e is damaged).",
        "Not drawn: b, c, trained as a was but for the seed.",
    ]
    assert list(told_of([shape()])) == []
