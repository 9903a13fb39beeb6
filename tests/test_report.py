"""A report composed: encodings are asked for their shapes by the run files that lie beside the rows."""

import math
from typing import Any

import pytest
import yaml

from megatron_mep.report import shapes_of
from megatron_mep.reporting.shapes import shape_chart
from tests.support.runs import run_tree


def settings(**encodings: dict[str, Any]) -> dict[str, str]:
    """Run files, by the names of runs."""
    trees = {name: run_tree(model={"encoding": encoding}) for name, encoding in encodings.items()}
    return {name: yaml.safe_dump(tree) for name, tree in trees.items()}


def test_the_shape_of_a_bias_is_its_factor_on_the_weight() -> None:
    (shape,) = shapes_of(settings(run={"name": "alibi"}), 64)
    assert (shape.title, shape.meaning, shape.runs, shape.learned) == ("alibi", "factor on the weight", ("run",), False)
    assert (shape.distances[0], shape.distances[-1]) == (0, 63)
    num_heads = len(shape.heads)
    for head, values in enumerate(shape.heads, start=1):
        slope = 2 ** (-8 * head / num_heads)
        assert values == pytest.approx([math.exp(-slope * distance) for distance in shape.distances], rel=1e-5)


def test_runs_of_one_encoding_share_its_shape() -> None:
    shapes = shapes_of(settings(a={"name": "alibi"}, b={"name": "fire"}, c={"name": "alibi"}), 64)
    assert [(shape.title, shape.runs, shape.learned) for shape in shapes] == [
        ("alibi", ("a", "c"), False),
        ("fire", ("b",), True),
    ]


def test_heads_that_are_alike_have_one_curve() -> None:
    (shape,) = shapes_of(settings(run={"name": "rope"}), 64)
    (curve,) = shape_chart(shape, "shape").curves
    assert curve.name == "every head"
    assert curve.points[0].y == pytest.approx(1.0)


def test_what_depends_on_tokens_has_no_shape_and_an_unreadable_run_file_none_either() -> None:
    unreadable = {"old": "model: {layers: 3}\n"}
    assert shapes_of(settings(a={"name": "nope"}, b={"name": "cable"}) | unreadable, 64) == []
