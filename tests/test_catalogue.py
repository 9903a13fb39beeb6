"""The encodings as text: nothing that a user may state is missing from it."""

import re
from pathlib import Path

import pytest

from megatron_mep.catalogue import COLUMNS, explained, listed, markdown, matrix, row_of, stated
from megatron_mep.config.errors import ConfigError
from megatron_mep.config.place import sections_under
from megatron_mep.encoding_figure import draw
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.rope import Rope

BY_NAME = {str(kind.model_fields["name"].default): kind for kind in BUILT_IN}
NAMES = list(BY_NAME)


def test_each_encoding_has_a_line_of_its_own() -> None:
    header, *lines = listed().splitlines()
    assert all(column in header for column in COLUMNS)
    assert [line.split()[0] for line in lines] == sorted(NAMES)
    for line in lines:
        kind = BY_NAME[line.split()[0]]
        assert kind.formula in line
        assert kind.source in line


def test_columns_stand_below_each_other() -> None:
    header, *lines = listed().splitlines()
    for column in COLUMNS:
        start = header.index(column)
        assert all(line[start - 1] == " " != line[start] for line in lines if start)


def test_rows_tell_kind_learned_weights_needs_and_backends() -> None:
    rows = {name: row_of(kind) for name, kind in zip(NAMES, BUILT_IN, strict=True)}
    assert rows["mep"][1:6:2] == ("bias by distance", "0", rows["alibi"][5])
    assert rows["rope"][1:6] == ("rotation", Rope.formula, "0", "positions", "plain")
    assert rows["kerple_3log"][3] == "3"
    # hidden size 768: a vector and a number for each head
    assert rows["fox"][3:6] == ("769", "hidden states", "chunked")
    assert rows["cope"][4] == "scores"
    assert "all heads on one rank" in rows["dape"][4]
    assert rows["learned_absolute"][3] == f"{512 * 768:,} at the embeddings"
    assert all(rows[name][4] and rows[name][5] for name in NAMES if name != "nope")


def test_the_literatures_encodings_are_there() -> None:
    assert len(NAMES) >= 34
    assert len(set(NAMES)) == len(NAMES)


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
        ("xyzzy", "NAME = 'xyzzy': is not a known encoding; use one of .*mep, .*module:Class"),
        ("nowhere:Mine", "NAME = 'nowhere:Mine': must be importable .*; correct it, or put its folder on PYTHONPATH"),
        ("json:JSONDecoder", "NAME = 'json:JSONDecoder': must name a subclass of Encoding"),
    ],
)
def test_an_unknown_encoding_is_told_with_a_remedy(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        explained(name)


def test_the_matrix_of_alibi_is_the_papers() -> None:
    lines = matrix(stated("alibi", []), num_heads=2, length=4).splitlines()
    assert lines[2] == "head 0"
    # slopes 2^-4 and 2^-8
    assert [line.split() for line in lines[3:7]] == [
        ["0.0000", ".", ".", "."],
        ["-0.0625", "0.0000", ".", "."],
        ["-0.1250", "-0.0625", "0.0000", "."],
        ["-0.1875", "-0.1250", "-0.0625", "0.0000"],
    ]
    assert lines[8] == "head 1"
    assert lines[12].split()[0] == f"{-3 / 256:.4f}"


SILENT = {"cable", "cable_nw_relu", "cable_nw_softplus", "fox", "learned_absolute", "legendre", "nope"}
SILENT |= {"randomized_absolute", "sinusoidal", "tape"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SILENT])
def test_encodings_show_their_matrix(name: str) -> None:
    told = matrix(stated(name, []), num_heads=8, length=3)
    assert told.count("head ") == 8
    assert "nan" not in told


@pytest.mark.parametrize("name", sorted(SILENT))
def test_what_depends_on_the_text_is_not_made_up(name: str) -> None:
    with pytest.raises(ConfigError, match="has nothing to show: "):
        matrix(stated(name, []), num_heads=8, length=3)


def test_options_are_heard_and_mistakes_told() -> None:
    wide = stated("mep", ["kernels=[{kernel: gaussian, width: 4}]"])
    assert "-0.0039" in matrix(wide, 1, 2) or wide.kernels[0].width == 4.0
    with pytest.raises(ConfigError, match="kernels"):
        stated("mep", ["kernels=[{kernel: gauss}]"])
    with pytest.raises(ConfigError, match="slopes"):
        matrix(stated("mep", ["kernels=[{kernel: gaussian, slopes: [0.1, 0.2]}]"]), num_heads=4, length=2)


@pytest.mark.parametrize("name", ["mep", "rope"])
@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_figure_is_written(tmp_path: Path, name: str, suffix: str, begins: bytes) -> None:
    file = tmp_path / f"figure{suffix}"
    told = draw(stated(name, []), 4, 64, file)
    assert file.read_bytes().startswith(begins)
    assert ("99 % of a head's kernel" in told) == (name == "mep")


def test_a_figure_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.png or \.svg"):
        draw(stated("mep", []), 4, 64, tmp_path / "figure.gif")
