"""The tricks as text: nothing that a user may state is missing from it."""

import re

import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.extrapolation import TRICKS
from megatron_mep.extrapolation.base import Trick
from megatron_mep.extrapolation.catalogue import COLUMNS, encodings_of, explained, listed, markdown
from megatron_mep.extrapolation.ntk import Ntk
from megatron_mep.extrapolation.window import Window

NAMES = [str(kind.model_fields["name"].default) for kind in TRICKS]


def test_each_trick_has_a_line_of_its_own() -> None:
    header, *lines = listed().splitlines()
    assert header.split() == list(COLUMNS)
    assert [line.split()[0] for line in lines] == NAMES == sorted(NAMES)
    for line, kind in zip(lines, TRICKS, strict=True):
        assert kind.formula in line
        assert kind.source in line


def test_markdown_has_a_cell_for_each_column() -> None:
    lines = markdown().splitlines()
    assert len(lines) == 2 + len(TRICKS)
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {len(COLUMNS) + 2}


@pytest.mark.parametrize("kind", TRICKS, ids=NAMES)
def test_explanation_holds_the_docstring_and_every_option_with_its_documentation(kind: type[Trick]) -> None:
    text = explained(str(kind.model_fields["name"].default))
    assert (kind.__doc__ or "").strip().splitlines()[0] in text
    assert "Acts on: " in text
    for key, field in kind.model_fields.items():
        if key != "name":
            assert re.search(rf"^ *{key}: ", text, re.MULTILINE)
            assert field.description
            assert field.description in text


def test_the_encodings_that_it_acts_on_are_named() -> None:
    of_ntk, of_window = set(encodings_of(Ntk)), set(encodings_of(Window))
    assert {"rope", "p_rope", "hope"} <= of_ntk
    assert not of_ntk & {"mep", "alibi", "nope", "clex"}
    assert {"rope", "mep", "alibi", "nope"} <= of_window
    assert "Acts on: " + ", ".join(encodings_of(Ntk)) in explained("ntk")


def test_an_unknown_trick_is_told_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"NAME = 'yarnn': is not a known trick; did you mean 'yarn'\?"):
        explained("yarnn")
