"""What holds for every encoding that a run file can name, in many settings: a new one cannot escape."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
import yaml
from pydantic import BaseModel
from torch import Tensor

from megatron_mep.config.place import sections_under
from megatron_mep.encodings import BUILT_IN, AnyEncoding
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias, Encoding, Rotation
from megatron_mep.encodings.kernels import Exponential, Gaussian, Logarithmic, Power
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.run import run_of
from tests.encodings.oracle import bias_of, fp64, weights_of
from tests.support.runs import run_tree

FARTHEST = 131_071
"""The largest distance in a sequence of 2^17 tokens."""
SPREAD = [0, 1, 2, 3, 7, 15, 31, 63, 127, 255, 511, 1023]


@dataclass(frozen=True)
class Case:
    """An encoding in one setting, and what is claimed of it there."""

    name: str
    encoding: Encoding
    heads: tuple[int, ...] = (8, 12)
    """Numbers of heads that the setting allows."""
    distinct: bool = True
    """fp32 tells the biases of any two distances apart, where the encoding is a bias."""


EIGHT_SLOPES = (0.9, 0.4, 0.3, 0.11, 0.05, 0.021, 0.011, 0.006)

CASES = (
    *(Case(f"{kind.model_fields['name'].default}", kind.model_validate({})) for kind in BUILT_IN),
    Case("alibi-balanced", Alibi(order="balanced")),
    Case("mep-balanced", Mep(order="balanced")),
    # KERPLE's kernels may fall by less than fp32 tells apart: (d + 1)^r2 / d^r2 is 1 + r2 / d
    Case("mep-parameterized", Mep(kernels=(Logarithmic(), Power())), distinct=False),
    Case("mep-two-powers", Mep(kernels=(Power(), Power(weight=3.0))), distinct=False),
    Case("mep-learned-slopes", Mep(kernels=(Exponential(learned=True), Gaussian(learned=True)))),
    Case("mep-one-kernel", Mep(kernels=(Gaussian(width=2.0),))),
    Case("mep-one-log-kernel", Mep(kernels=(Logarithmic(weight=2.0),))),
    Case("mep-three-kernels", Mep(kernels=(Exponential(), Gaussian(), Gaussian(width=16.0)))),
    Case("mep-unequal", Mep(kernels=(Exponential(weight=3.0, width=2.0), Gaussian(weight=0.5, width=8.0)))),
    Case("mep-same-slope", Mep(kernels=(Exponential(), Gaussian(squared_slope=False)))),
    Case("mep-stated", Mep(kernels=(Exponential(slopes=EIGHT_SLOPES), Gaussian(slopes=EIGHT_SLOPES))), heads=(8,)),
    Case("mep-stated-learned", Mep(kernels=(Gaussian(slopes=EIGHT_SLOPES, learned=True),)), heads=(8,)),
    Case("mep-geometric", Mep(mean="geometric")),
    Case("mep-geometric-learned", Mep(kernels=(Exponential(learned=True), Power()), mean="geometric"), distinct=False),
    Case("rope-long", Rope(base=500_000.0)),
    Case("rope-partial", Rope(fraction=0.25)),
)


def parametrised(cases: Iterable[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases])


every = parametrised(CASES)
biases = parametrised(case for case in CASES if isinstance(case.encoding, DistanceBias))
rotations = parametrised(case for case in CASES if isinstance(case.encoding, Rotation))
learning = parametrised(case for case in CASES if case.encoding.learned)


def test_no_encoding_escapes() -> None:
    union = get_args(get_args(AnyEncoding)[0])
    tagged = {get_args(member)[-1].tag: get_args(member)[0] for member in union[:-1]}
    assert tagged == {kind.model_fields["name"].default: kind for kind in BUILT_IN}
    families = (DistanceBias, Rotation, Nope)
    assert all(issubclass(kind, families) for kind in BUILT_IN), "a family without tests in this file"


def test_no_option_escapes() -> None:
    sections = {section for kind in BUILT_IN for section in (kind, *_nested(kind))}
    stated = [section for case in CASES for section in _sections_of(case.encoding)]
    for section in sections:
        values = [one for one in stated if type(one) is section]
        for key in section.model_fields:
            if key in ("name", "kernel") or (key == "learned" and section in (Logarithmic, Power)):
                continue
            assert len({getattr(one, key) for one in values}) > 1, f"no case changes {section.__name__}.{key}"


@every
def test_docstring_and_table_cite_a_source(case: Case) -> None:
    assert "arXiv:" in (type(case.encoding).__doc__ or "")
    assert "arXiv:" in case.encoding.source
    assert case.encoding.formula


@every
def test_a_run_file_gives_it_back(case: Case) -> None:
    model = {"num_attention_heads": case.heads[0], "hidden_size": 8 * case.heads[0]}
    stated = case.encoding.model_dump(mode="json")
    run = run_of(run_tree(model={**model, "encoding": stated}))
    assert run.model.encoding == case.encoding
    assert run_of(yaml.safe_load(run.yaml())) == run


@every
def test_weights_are_fp32_for_all_heads_and_alike_from_equal_generators(case: Case) -> None:
    for num_heads in case.heads:
        declared = case.encoding.weights(num_heads, torch.Generator().manual_seed(1))
        again = case.encoding.weights(num_heads, torch.Generator().manual_seed(1))
        assert case.encoding.learned == any(weight.learned for weight in declared.values())
        for name, weight in declared.items():
            assert weight.value.dtype == torch.float32
            assert weight.value.equal(again[name].value)
            assert not weight.per_head or len(weight.value) == num_heads


@biases
def test_bias_is_finite_and_falls_to_the_farthest_distance(case: Case) -> None:
    assert isinstance(case.encoding, DistanceBias)
    for num_heads in case.heads:
        distance = torch.arange(FARTHEST + 1, dtype=torch.float32)
        bias = bias_of(case.encoding, distance, num_heads)
        assert bias.dtype == torch.float32
        assert bias.shape == (num_heads, FARTHEST + 1)
        assert bias.isfinite().all()
        # fp32's power rounds either way by a unit in the last place
        slack = -bias[:, 1:] * 2 * torch.finfo(torch.float32).eps
        assert ((bias.diff() < 0) if case.distinct else (bias.diff() <= slack)).all()
        assert (bias_of(case.encoding, distance.double(), num_heads).diff() < 0).all()


@biases
def test_bias_is_zero_at_distance_zero(case: Case) -> None:
    assert isinstance(case.encoding, DistanceBias)
    torch.testing.assert_close(bias_of(case.encoding, fp64([0]), 8), torch.zeros(8, 1).double(), rtol=0, atol=1e-15)


@biases
def test_bias_has_the_wider_of_fp32_and_the_distances_type(case: Case) -> None:
    assert isinstance(case.encoding, DistanceBias)
    num_heads = case.heads[-1]
    wide, narrow = (
        bias_of(case.encoding, fp64(SPREAD).to(dtype), num_heads) for dtype in (torch.float64, torch.float32)
    )
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-6)
    assert not narrow.double().equal(wide), "fp64 distances give fp64 digits"
    widened = case.encoding.of_distance(fp64(SPREAD), **weights_of(case.encoding, num_heads, torch.float64))
    assert widened.equal(wide), "all of the formula is computed in fp64, the weights' part too"


@biases
@pytest.mark.parametrize("tensor_size", [1, 2, 4])
def test_heads_of_a_rank_are_a_slice_of_the_whole(case: Case, tensor_size: int) -> None:
    assert isinstance(case.encoding, DistanceBias)
    distance = torch.arange(1000, dtype=torch.float32)
    for num_heads in case.heads:
        declared = case.encoding.weights(num_heads, torch.Generator().manual_seed(7))
        whole = bias_of(case.encoding, distance, num_heads)
        for rank in range(tensor_size):
            heads = slice(rank * num_heads // tensor_size, (rank + 1) * num_heads // tensor_size)
            own = {name: weight.value[heads] if weight.per_head else weight.value for name, weight in declared.items()}
            assert case.encoding.of_distance(distance, **own).equal(whole[heads])


@learning
def test_gradients_are_finite_at_every_distance_and_reach_every_weight(case: Case) -> None:
    assert isinstance(case.encoding, DistanceBias)
    for distance in (torch.arange(FARTHEST + 1).float(), torch.tensor([0.0]), torch.tensor([float(FARTHEST)])):
        weights = _learned(case.encoding, torch.float32)
        # signs vary, so that the gradients of no two distances cancel by rule; a single NaN or infinity still shows
        sign = torch.where(torch.arange(len(distance)) % 3 == 0, -1.0, 1.0)
        (case.encoding.of_distance(distance, **weights) * sign).sum().backward()
        for name, weight in weights.items():
            if weight.requires_grad:
                assert weight.grad is not None
                assert weight.grad.isfinite().all(), f"{name} at distances {distance[0]} to {distance[-1]}"
                assert len(distance) == 1 or weight.grad.all(), f"a head's {name} never learns"


@learning
def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    encoding = case.encoding
    assert isinstance(encoding, DistanceBias)
    weights = _learned(encoding, torch.float64)
    names = tuple(weights)

    def bias(*values: Tensor) -> Tensor:
        return encoding.of_distance(fp64(SPREAD), **dict(zip(names, values, strict=True)))

    assert torch.autograd.gradcheck(bias, tuple(weights.values()), fast_mode=True)


@biases
def test_formula_writes_to_no_weight(case: Case) -> None:
    assert isinstance(case.encoding, DistanceBias)
    weights = weights_of(case.encoding, 8)
    before = {name: (weight.clone(), weight._version) for name, weight in weights.items()}
    distance = torch.arange(10.0)
    case.encoding.of_distance(distance, **weights)
    for name, weight in weights.items():
        assert weight.equal(before[name][0])
        assert weight._version == before[name][1]
    assert distance.equal(torch.arange(10.0))


@rotations
def test_angles_are_finite_and_tell_positions_apart(case: Case) -> None:
    assert isinstance(case.encoding, Rotation)
    assert case.encoding.weights(8, torch.Generator()) == {}
    position = torch.arange(FARTHEST + 1, dtype=torch.float32)
    angle = case.encoding.angles(position, 16)
    assert angle.dtype == torch.float32
    assert angle.shape == (FARTHEST + 1, 8)
    assert angle.isfinite().all()
    first = torch.polar(torch.ones(len(position)), angle[:, 0])
    assert len(set(first.tolist())) == len(position)


@rotations
def test_angles_have_the_wider_of_fp32_and_the_positions_type(case: Case) -> None:
    assert isinstance(case.encoding, Rotation)
    wide, narrow = (case.encoding.angles(fp64(SPREAD).to(dtype), 16) for dtype in (torch.float64, torch.float32))
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(narrow.double(), wide % (2 * math.pi), rtol=1e-6, atol=1e-7)


def _learned(encoding: DistanceBias, dtype: torch.dtype) -> dict[str, Tensor]:
    declared = encoding.weights(8, torch.Generator().manual_seed(7))
    return {name: weight.value.to(dtype).requires_grad_(weight.learned) for name, weight in declared.items()}


def _nested(kind: type[BaseModel]) -> list[type[BaseModel]]:
    return [section for key in kind.model_fields for section in sections_under(kind, key)]


def _sections_of(encoding: Encoding) -> list[BaseModel]:
    nested = [value for key in type(encoding).model_fields for value in _listed(getattr(encoding, key))]
    return [encoding, *nested]


def _listed(value: object) -> list[BaseModel]:
    return [item for item in value if isinstance(item, BaseModel)] if isinstance(value, tuple) else []
