"""The encodings as text: nothing that a user may state is missing from it."""

import re

import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.config.place import sections_under
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.catalogue import COLUMNS, explained, listed, markdown, row_of
from megatron_mep.encodings.mep import Mep

NAMES = [str(kind.model_fields["name"].default) for kind in BUILT_IN]


def test_each_encoding_has_a_line_of_its_own() -> None:
    header, *lines = listed().splitlines()
    assert all(column in header for column in COLUMNS)
    assert [line.split()[0] for line in lines] == NAMES
    for line, kind in zip(lines, BUILT_IN, strict=True):
        assert kind.formula in line
        assert kind.source in line


def test_columns_stand_below_each_other() -> None:
    header, *lines = listed().splitlines()
    for column in COLUMNS:
        start = header.index(column)
        assert all(line[start - 1] == " " != line[start] for line in lines if start)


def test_rows_tell_kind_and_learned_weights() -> None:
    kinds = {name: row_of(kind)[1] for name, kind in zip(NAMES, BUILT_IN, strict=True)}
    assert kinds == {"mep": "bias by distance", "alibi": "bias by distance", "rope": "rotation", "nope": "none"}
    assert {row_of(kind)[3] for kind in BUILT_IN} == {"0"}, "none learns anything by default"


def test_markdown_has_a_cell_for_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alibi, "formula", "-m_h |d|")
    lines = markdown().splitlines()
    assert len(lines) == 2 + len(BUILT_IN)
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {len(COLUMNS) + 2}


@pytest.mark.parametrize("kind", BUILT_IN, ids=NAMES)
def test_explanation_holds_the_docstring_and_every_option_with_its_documentation(kind: type[Encoding]) -> None:
    text = explained(str(kind.model_fields["name"].default))
    assert "arXiv:" in text
    sections = [kind, *(section for key in kind.model_fields for section in sections_under(kind, key))]
    for section in sections:
        assert (section.__doc__ or "").strip().splitlines()[0] in text
        for key, field in section.model_fields.items():
            if key not in ("name", "kernel"):
                assert re.search(rf"^ *{key}: ", text, re.MULTILINE)
                assert field.description
                assert field.description in text


def test_defaults_are_written_as_in_a_run_file() -> None:
    assert "kernels: [{kernel: exponential}, {kernel: gaussian}]\n" in explained("mep")
    assert "slopes: null\n" in explained("mep")
    assert "fraction: 1.0\n" in explained("rope")


def test_a_class_of_the_users_own_is_explained_too() -> None:
    text = explained(f"{Mep.__module__}:Mep")
    assert text.startswith("megatron_mep.encodings.mep:Mep (bias by distance)")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("alibbi", r"NAME = 'alibbi': is not a known encoding; did you mean 'alibi'\?"),
        ("xyzzy", "NAME = 'xyzzy': is not a known encoding; use one of mep, alibi, rope, nope, module:Class"),
        ("nowhere:Mine", "NAME = 'nowhere:Mine': must be importable .*; correct it, or put its folder on PYTHONPATH"),
        ("json:JSONDecoder", "NAME = 'json:JSONDecoder': must name a subclass of Encoding"),
    ],
)
def test_an_unknown_encoding_is_told_with_a_remedy(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        explained(name)
