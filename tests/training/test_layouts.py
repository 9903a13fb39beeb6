"""Training at every layout follows the course of one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.distributed import joined, run
from tests.training.course import MODELS, Course, assert_alike, course_of
from tests.training.layouts import LAYOUTS, Layout, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "layouts.md"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Course]:
    """The courses of one process."""
    file = tmp_path_factory.mktemp("expected") / "courses.json"
    run(_undivided, 1, file)
    return json.loads(file.read_text())


def _undivided(file: Path) -> None:
    here = joined()
    file.write_text(json.dumps({name: course_of(name, {}, here) for name in MODELS}))


def _marked(layout: Layout) -> Any:
    return pytest.param(layout, marks=[] if layout.is_quick else pytest.mark.slow)


@pytest.mark.parametrize("layout", map(_marked, LAYOUTS), ids=str)
def test_losses_are_those_of_one_process(expected: dict[str, Course], layout: Layout) -> None:
    run(_trained, layout.world_size, expected, layout)


def _trained(expected: dict[str, Course], layout: Layout) -> None:
    here = joined(**layout.parallel)
    assert here.data_size == layout.data
    for name in layout.models:
        found = course_of(
            name, layout.parallel, here, layout.zero_stage, layout.num_micro_batches, recompute=layout.recompute
        )
        assert_alike(found, expected[name], (str(layout), name))


def test_every_pair_is_trained_or_refused_as_the_document_says() -> None:
    """`python -m tests.training.layouts` would print what belongs there."""
    assert table() in DOCUMENT.read_text(encoding="utf-8")
