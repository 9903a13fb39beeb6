"""What every encoding says of itself: its source, its options, its weights."""

import inspect

import pytest
import torch
import yaml
from pydantic import BaseModel

from megatron_mep.config.place import sections_under
from megatron_mep.config.union import choices
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.placement import Embedded
from megatron_mep.run import run_of
from tests.every_encoding.case import Case
from tests.every_encoding.conftest import built_in
from tests.every_encoding.layer import HEAD_SIZE, sizes_of
from tests.support.runs import run_tree

ALWAYS = {"log": "learned", "power": "learned", "3log": "learned"}
"""Options that have one value: KERPLE's kernels always learn."""


def test_no_encoding_escapes() -> None:
    assert {type(case.encoding) for case in built_in()} == set(BUILT_IN)
    names = [case.name for case in built_in()]
    assert len(set(names)) == len(names)


def test_no_option_escapes() -> None:
    stated = [section for case in built_in() for section in _sections_of(case.encoding)]
    for kind in {section for encoding in BUILT_IN for section in (encoding, *_nested(encoding))}:
        values = [one for one in stated if type(one) is kind]
        for key in kind.model_fields:
            if key in choices(kind) or ALWAYS.get(str(getattr(values[0], "kernel", ""))) == key:
                continue
            assert len({repr(getattr(one, key)) for one in values}) > 1, f"no case changes {kind.__name__}.{key}"


def test_docstring_and_table_say_where_it_is_from(case: Case) -> None:
    kind = type(case.encoding)
    assert inspect.cleandoc(kind.__doc__ or "")
    assert case.encoding.source
    assert case.encoding.formula
    if kind in BUILT_IN:
        assert "arXiv:" in case.encoding.source
        assert "arXiv:" in (kind.__doc__ or "")


def test_a_run_file_gives_it_back(case: Case) -> None:
    model = {"num_attention_heads": case.heads[0], "hidden_size": HEAD_SIZE * case.heads[0]}
    stated = case.encoding.model_dump(mode="json")
    run = run_of(run_tree(model={**model, "encoding": stated}))
    assert run.model.encoding == case.encoding
    assert run_of(yaml.safe_load(run.yaml())) == run


def test_weights_are_fp32_for_all_heads_and_alike_from_equal_generators(case: Case) -> None:
    for num_heads in case.heads:
        layer, again = (
            case.encoding.layer_weights(sizes_of(num_heads), torch.Generator().manual_seed(1)) for _ in range(2)
        )
        assert case.encoding.learned == any(weight.learned for weight in layer.values())
        for name, weight in layer.items():
            assert weight.value.dtype == torch.float32
            assert weight.value.equal(again[name].value)
            assert not weight.per_head or len(weight.value) == num_heads


@pytest.mark.kind.with_args(Embedded)
def test_weights_at_embeddings_have_no_heads(case: Case) -> None:
    assert isinstance(case.encoding, Embedded)
    first, again = (
        case.encoding.embedding_weights(sizes_of(case.heads[0]), torch.Generator().manual_seed(1)) for _ in range(2)
    )
    for name, weight in first.items():
        assert weight.value.dtype == torch.float32
        assert weight.value.equal(again[name].value)
        assert not weight.per_head


def _nested(kind: type[BaseModel]) -> list[type[BaseModel]]:
    return [section for key in kind.model_fields for section in sections_under(kind, key)]


def _sections_of(encoding: Encoding) -> list[BaseModel]:
    nested = [value for key in type(encoding).model_fields for value in _listed(getattr(encoding, key))]
    return [encoding, *nested]


def _listed(value: object) -> list[BaseModel]:
    if isinstance(value, BaseModel):
        return [value]
    return [item for item in value if isinstance(item, BaseModel)] if isinstance(value, tuple) else []
