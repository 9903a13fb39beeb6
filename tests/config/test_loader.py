"""A run file and overrides become one tree: what wins over what, and what cannot be read."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.loader import apply_overrides, load, load_tree, merge


class Cosine(Config):
    name: Literal["cosine"] = "cosine"
    warmup: int = 0
    lowest: float = 0.0


class Constant(Config):
    name: Literal["constant"] = "constant"
    warmup: int = 0


class Study(Config):
    name: str
    steps: int = 100
    rate: float = 1.0
    lengths: tuple[int, ...] = (1, 2)
    schedule: Annotated[Cosine | Constant, Field(discriminator="name")] = Cosine()


def file_of(folder: Path, text: str, name: str = "run.yaml") -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def only_mistake(told: pytest.ExceptionInfo[ConfigError]) -> Mistake:
    (mistake,) = told.value.mistakes
    return mistake


def test_a_file_is_validated_as_a_section(tmp_path: Path) -> None:
    file = file_of(tmp_path, "name: a\nsteps: 7\nschedule: {name: constant, warmup: 3}\n")
    assert load(Study, file) == Study(name="a", steps=7, schedule=Constant(warmup=3))


def test_each_file_wins_over_the_one_that_it_extends(tmp_path: Path) -> None:
    far = "name: far\nsteps: 1\nrate: 1.5\nlengths: [5, 6, 7]\nschedule: {name: cosine, warmup: 1}"
    file_of(tmp_path, far, "far.yaml")
    file_of(tmp_path, "extends: ../far.yaml\nsteps: 2\nlengths: [8]\nschedule: {lowest: 0.5}", "sub/near.yaml")
    file = file_of(tmp_path, "extends: sub/near.yaml\nname: here\nschedule: {warmup: 9}")
    expected = Study(name="here", steps=2, rate=1.5, lengths=(8,), schedule=Cosine(warmup=9, lowest=0.5))
    assert load(Study, file) == expected
    assert "extends" not in load_tree(file)


def test_a_name_of_its_own_leaves_a_file_what_it_extends(tmp_path: Path) -> None:
    file_of(tmp_path, "name: base\nsteps: 3", "base.yaml")
    assert load_tree(file_of(tmp_path, "extends: base.yaml\nname: mine")) == {"name": "mine", "steps": 3}


def test_a_circle_of_files_is_refused(tmp_path: Path) -> None:
    file_of(tmp_path, "extends: run.yaml", "other.yaml")
    file = file_of(tmp_path, "extends: other.yaml")
    with pytest.raises(ConfigError, match=r"must not come back to itself \(run.yaml -> other.yaml -> run.yaml\)"):
        load_tree(file)


def test_overrides_win_over_files_and_later_ones_over_earlier(tmp_path: Path) -> None:
    file = file_of(tmp_path, "name: a\nsteps: 1\nschedule: {name: cosine, warmup: 1}")
    run = load(Study, file, ["steps=2", "schedule.lowest=0.25", "steps=3"])
    assert run == Study(name="a", steps=3, schedule=Cosine(warmup=1, lowest=0.25))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("", None),
        ("word", "word"),
        ("[1, 2]", [1, 2]),
        ("{name: constant}", {"name": "constant"}),
        ("a=b", "a=b"),
        ("'3'", "3"),
    ],
)
def test_values_of_overrides_are_yaml(text: str, value: object) -> None:
    assert apply_overrides({}, [f"some.key={text}"]) == {"some": {"key": value}}


def test_scientific_notation_without_a_dot_is_a_number() -> None:
    # YAML 1.1 reads 1e-3 as text
    assert Study.model_validate(apply_overrides({"name": "a"}, ["rate=1e-3"])).rate == 0.001


def test_a_new_member_of_a_union_drops_the_options_of_the_old_one(tmp_path: Path) -> None:
    file = file_of(tmp_path, "name: a\nschedule: {name: cosine, warmup: 5, lowest: 0.5}")
    assert load(Study, file, ["schedule.name=constant"]).schedule == Constant()
    assert load(Study, file, ["schedule.name=cosine"]).schedule == Cosine(warmup=5, lowest=0.5), "the same member"
    assert load(Study, file, ["schedule={name: constant, warmup: 2}"]).schedule == Constant(warmup=2)


@pytest.mark.parametrize("overrides", [("name=constant", "warmup=2"), ("warmup=2", "name=constant")])
def test_an_option_survives_the_choice_of_its_member_in_any_order(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    file = file_of(tmp_path, "name: a\nschedule: {name: cosine, warmup: 5}")
    assert load(Study, file, [f"schedule.{one}" for one in overrides]).schedule == Constant(warmup=2)


def test_a_name_beside_a_kind_chooses_nothing() -> None:
    below = {"source": {"kind": "hub", "name": "one/text", "column": "body"}}
    assert merge(below, {"source": {"name": "other/text"}}) == {
        "source": {"kind": "hub", "name": "other/text", "column": "body"}
    }
    assert merge(below, {"source": {"kind": "files", "paths": []}}) == {"source": {"kind": "files", "paths": []}}


def test_merging_changes_neither_tree() -> None:
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("name: a\nsteps: 1\nsteps: 2\n", "the key 'steps' stands twice .* line 3"),
        ("schedule: {warmup: 1, name: constant, warmup: 2}", "the key 'warmup' stands twice .* line 1"),
        ("name: [a", "is not valid YAML .* line 1"),
        ("? [1, 2]\n: 3\n", "is not valid YAML .*unhashable key"),
        ("name: !!python/object/apply:os.getcwd []", "is not valid YAML .*could not determine a constructor"),
        ("- name\n- steps\n", "must hold keys and values"),
        ("", "must hold keys and values"),
        ("extends: [a.yaml, b.yaml]", "must be the path of one file"),
        ("extends: nowhere.yaml", "nowhere.yaml: is not there"),
    ],
)
def test_what_cannot_be_read_names_file_and_line(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        load_tree(file_of(tmp_path, text))


def test_anchors_and_merge_keys_are_read(tmp_path: Path) -> None:
    text = "schedule: &s {name: cosine, warmup: 1}\nother: {<<: *s, warmup: 2}\nthird: {<<: *s}"
    tree = load_tree(file_of(tmp_path, text))
    assert tree["other"] == {"name": "cosine", "warmup": 2}
    assert tree["third"] == {"name": "cosine", "warmup": 1}


def test_an_absent_file_a_folder_and_bytes_are_told_without_a_traceback(tmp_path: Path) -> None:
    for path, rule in ((tmp_path / "absent.yaml", "is not there"), (tmp_path, "cannot be read")):
        with pytest.raises(ConfigError) as told:
            load_tree(path)
        assert only_mistake(told).key == str(path)
        assert rule in only_mistake(told).rule
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: café".encode("latin-1"))
    with pytest.raises(ConfigError, match="give a YAML file in UTF-8"):
        load_tree(latin)


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("steps", "is not an override"),
        ("=3", "is not an override"),
        ("schedule..warmup=3", "is not an override"),
        ("steps=[1", "is not a YAML value"),
        ("lengths[1]=8", "names an item of a list"),
    ],
)
def test_what_is_no_override_is_told(override: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        apply_overrides({}, [override])


def test_all_wrong_overrides_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        apply_overrides({}, ["steps", "rate=2", "lengths[1]=8"])
    assert [mistake.key for mistake in told.value.mistakes] == ["steps", "lengths[1]=8"]


def test_a_boolean_is_no_number(tmp_path: Path) -> None:
    text = "name: a\nsteps: true\nlengths: [4, false]\nschedule: {name: cosine, lowest: true}\n"
    with pytest.raises(ConfigError) as told:
        load(Study, file_of(tmp_path, text))
    assert [(mistake.key, mistake.value) for mistake in told.value.mistakes] == [
        ("steps", True),
        ("lengths[1]", False),
        ("schedule.lowest", True),
    ]
    assert "steps = True: must be a number; write one, 1 if it is meant" in str(told.value)
