import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from megatron_mep.data.config import DataConfig, Files, Hub, PythonStandardLibrary, TrainTokenizer


def test_the_embedded_corpus_needs_no_settings():
    data = DataConfig()
    assert data.source == PythonStandardLibrary()
    assert data.tokenizer == TrainTokenizer()


def test_a_kind_chooses_its_own_options():
    data = DataConfig.model_validate({"source": {"kind": "hub", "name": "a/b", "split": "train[:1%]"}})
    assert data.source == Hub(kind="hub", name="a/b", split="train[:1%]")
    data = DataConfig.model_validate({"source": {"kind": "files", "paths": ["a.txt"]}})
    assert isinstance(data.source, Files)
    with pytest.raises(ValidationError, match="max_bytes"):
        DataConfig.model_validate({"source": {"kind": "files", "paths": ["a.txt"], "max_bytes": 1}})


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_validation_takes_a_part_and_never_all(fraction):
    with pytest.raises(ValidationError, match="validation_fraction"):
        DataConfig(validation_fraction=fraction)


def test_every_field_is_documented():
    definitions = TypeAdapter(DataConfig).json_schema()
    sections = [definitions, *definitions["$defs"].values()]
    undocumented = [
        name
        for section in sections
        for name, field in section["properties"].items()
        if name not in ("kind", "name") and "description" not in field
    ]
    assert not undocumented


def test_settings_are_read_without_any_heavy_library():
    program = "import sys, megatron_mep.data.config; print({'torch', 'megatron', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
