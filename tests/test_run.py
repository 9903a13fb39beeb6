"""The run file as a whole: what it comes to, its schema, and encodings of the user's own in it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings import BUILT_IN
from megatron_mep.run import RunConfig, load_run, overridden, run_of
from tests.support.runs import run_tree

OWN = '''
from typing import ClassVar, Literal
from pydantic import Field
from megatron_mep.encodings.base import DistanceBias, Encoding, Weight, per_head
import torch

class Square(DistanceBias):
    """b_h(d) = -scale d^2."""

    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "-scale d^2"
    scale: float = Field(0.5, gt=0)
    """How steep."""

    def weights(self, num_heads, generator):
        return {"scale": Weight(torch.full((num_heads,), self.scale), learned=False)}

    def of_distance(self, distance, **weights):
        return -per_head(weights["scale"], distance) * distance.square()

class Unfinished(DistanceBias):
    """Lacks its formula."""

function = print
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an encoding that is importable."""
    (tmp_path / "own_encodings_of_a_test.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_encodings_of_a_test:Square"


def encoded(**encoding: Any) -> dict[str, Any]:
    return run_tree(model={"encoding": encoding})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training": {"schedule": {"name": "wsd", "decay_steps": 2}}, "evaluation": {"lengths": [8, 16], "last_k": 4}},
        {"data": {"source": {"kind": "files", "paths": ["a/*.txt", "größe.txt"]}}},
        {"model": {"encoding": {"name": "rope", "base": 12345.678}, "num_query_groups": 2}},
        {"model": {"encoding": {"name": "nope"}}, "name": "1e3"},
    ],
)
def test_the_resolved_file_gives_the_run_back(changes: dict[str, Any]) -> None:
    run = run_of(run_tree(**changes))
    assert run_of(yaml.safe_load(run.yaml())) == run


def test_the_resolved_file_states_every_key() -> None:
    stated = yaml.safe_load(run_of(run_tree()).yaml())
    assert set(stated) == set(RunConfig.model_fields)
    assert stated["model"]["encoding"]["kernels"][1]["squared_slope"] is True


def test_a_file_with_overrides_becomes_a_run(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run_tree()), encoding="utf-8")
    run = load_run(file, ["model.encoding.name=alibi", "training.optimizer.learning_rate=3e-4"])
    assert run.model.encoding.name == "alibi"
    assert run.training.optimizer.learning_rate == 3e-4
    assert run.folder == Path("runs/smallest")


def test_overrides_of_a_run_are_validated_anew() -> None:
    run = run_of(run_tree())
    changed = overridden(run, ["model.encoding.name=rope", "evaluation.lengths=[8, 16]"])
    assert changed.model.encoding.name == "rope"
    assert changed.evaluation.lengths == (8, 16)
    with pytest.raises(ConfigError, match=r"parallel\.tensor = 3"):
        overridden(run, ["parallel.tensor=3"])


@pytest.mark.parametrize("name", ["", "a b", "../up", ".hidden", "a/b"])
def test_a_name_is_that_of_a_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="name = "):
        run_of(run_tree(name=name))


def test_the_schema_names_every_encoding_and_documents_its_options() -> None:
    schema = RunConfig.model_json_schema()
    json.dumps(schema)
    (member_of,) = [schema["$defs"]["ModelConfig"]["properties"]["encoding"]["oneOf"]]
    *built_in, own = member_of
    names = [schema["$defs"][member["$ref"].rpartition("/")[2]]["properties"]["name"]["const"] for member in built_in]
    assert names == [kind.model_fields["name"].default for kind in BUILT_IN]
    assert own["properties"]["name"]["pattern"] == ":", "an editor accepts options that it cannot know"
    assert own.get("additionalProperties", True)
    assert schema["$defs"]["Gaussian"]["properties"]["width"]["description"].startswith("Stretches the kernel")


@pytest.mark.filterwarnings("error")
def test_an_encoding_of_ones_own_loads_and_is_given_back_with_its_options(own: str) -> None:
    run = run_of(encoded(name=own, scale=0.25))
    assert type(run.model.encoding).__name__ == "Square"
    assert yaml.safe_load(run.yaml())["model"]["encoding"] == {"name": own, "scale": 0.25}
    assert run_of(yaml.safe_load(run.yaml())) == run
    assert overridden(run, ["model.encoding.scale=2"]).model.encoding.scale == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "key", "told"),
    [
        ({"scale": -1}, "model.encoding.scale", "must be greater than 0; correct it (How steep.)"),
        ({"scal": 1}, "model.encoding.scal", "is not a known key; did you mean 'scale'?"),
    ],
)
def test_options_of_ones_own_encoding_are_validated(own: str, options: dict[str, Any], key: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(encoded(name=own, **options) | {"parallel": {"tensor": 3}})
    first, *rest = caught.value.mistakes
    assert first.key == key
    assert str(first).endswith(told)
    assert {mistake.key for mistake in rest} == {"parallel.tensor"}, "rules between sections are still checked"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("no_such_module:Square", "must be importable (No module named 'no_such_module')"),
        ("own_encodings_of_a_test:Circle", "has no attribute 'Circle')"),
        ("own_encodings_of_a_test:function", "must name a subclass of Encoding without abstract methods"),
        ("own_encodings_of_a_test:Unfinished", "must name a subclass of Encoding without abstract methods"),
        ("own_encodings_of_a_test:", "must be written module:Class"),
        (".own_encodings_of_a_test:Square", "must be written module:Class"),
        ("megatron_mep.encodings.alibi:Alibi", "is not a known choice"),
    ],
)
def test_what_is_no_encoding_of_ones_own_is_told_at_its_name(own: str, name: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(encoded(name=name))
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.value) == ("model.encoding.name", name)
    assert mistake.rule.endswith(rule)
    assert mistake.remedy


def test_a_module_of_ones_own_that_is_no_python_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_python_at_all.py").write_text("class Mine(:\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"must be importable \(invalid syntax \(no_python_at_all.py, line 1\)\)"):
        run_of(encoded(name="no_python_at_all:Mine"))
