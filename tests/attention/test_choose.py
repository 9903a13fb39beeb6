"""Which backend serves what, and what a user is told where none does."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.choose import Backend, choose
from megatron_mep.attention.reference import dense_attention
from megatron_mep.attention.toeplitz import toeplitz_attention
from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.base import DistanceBias, Encoding, Rotation, Weight
from tests.attention.oracle import SCALE, Shape, attend_by_query, random_inputs


class Nothing(Encoding):
    name: str = "nothing"


class Turning(Rotation):
    name: str = "turning"

    def angles(self, position: Tensor, head_size: int) -> Tensor:
        raise NotImplementedError


class Falling(DistanceBias):
    name: str = "falling"
    slope_learned: ClassVar[bool] = False

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        return {"slope": Weight(torch.ones(num_heads), learned=self.slope_learned)}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        raise NotImplementedError


class LearnedFalling(Falling):
    slope_learned: ClassVar[bool] = True


def chosen(encoding: Encoding, **changes: object) -> Backend:
    asked = {"device_type": "cpu", "dtype": torch.float32, "training": True, "dropout": 0.0}
    return choose(encoding, **(asked | changes))


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("encoding", [Nothing(), Turning()])
def test_encodings_without_a_bias_are_plain_on_any_device(encoding, device_type):
    backend = chosen(encoding, device_type=device_type)
    assert backend.name == "plain"
    assert encoding.name in backend.reason


@pytest.mark.parametrize(("encoding", "kind"), [(Falling(), "fixed"), (LearnedFalling(), "learned")])
def test_a_bias_by_distance_is_toeplitz_on_a_cpu(encoding, kind):
    backend = chosen(encoding)
    assert (backend.name, backend.attend) == ("toeplitz", toeplitz_attention)
    assert backend.reason.startswith(f"{kind} bias by distance on a CPU")


def test_half_precision_is_told_what_its_backward_pass_computes_in():
    assert "fp32" in chosen(Falling(), dtype=torch.bfloat16).reason
    assert "fp32" not in chosen(Falling()).reason


@pytest.mark.parametrize("encoding", [Nothing(), Turning(), Falling()])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_reference_serves_everything_when_it_is_named(encoding, device_type):
    backend = chosen(encoding, device_type=device_type, backend="reference")
    assert (backend.name, backend.attend) == ("reference", dense_attention)
    assert "4096 positions" in backend.reason


def test_a_bias_on_cuda_is_refused_unless_the_reference_is_named():
    with pytest.raises(ConfigError) as refusal:
        chosen(Falling(), device_type="cuda")
    (mistake,) = refusal.value.mistakes
    assert (mistake.key, mistake.value) == ("model.attention_backend", "auto")
    assert "must be reference on cuda under falling" in mistake.rule
    assert "4096 positions" in mistake.remedy


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_dropout_with_a_bias_is_refused_in_training(backend):
    with pytest.raises(ConfigError) as refusal:
        chosen(Falling(), dropout=0.1, backend=backend)
    (mistake,) = refusal.value.mistakes
    assert (mistake.key, mistake.value) == ("model.attention_dropout", 0.1)
    assert mistake.rule.startswith("must be 0 in training under falling")
    assert mistake.remedy.startswith("set it to 0")


def test_dropout_is_nothing_outside_training():
    assert chosen(Falling(), dropout=0.1, training=False).name == "toeplitz"


def test_all_that_stands_against_a_backend_is_told_at_once():
    with pytest.raises(ConfigError) as refusal:
        chosen(Falling(), device_type="cuda", dropout=0.1)
    keys = [mistake.key for mistake in refusal.value.mistakes]
    assert keys == ["model.attention_dropout", "model.attention_backend"]


def test_dropout_without_a_bias_acts_in_training_alone():
    query, key, value, *_ = random_inputs(Shape(1, 2, 2, 50, 50))
    ones = torch.ones_like(value)
    dropping = chosen(Nothing(), dropout=0.5)
    assert "dropout" in dropping.reason
    assert (dropping.attend(query, key, ones, None, scale=SCALE) - 1).abs().max() > 0.1
    evaluating = chosen(Nothing(), dropout=0.5, training=False)
    torch.testing.assert_close(evaluating.attend(query, key, ones, None, scale=SCALE), torch.ones_like(query))


@pytest.mark.parametrize(("encoding", "backend"), [(Falling(), "auto"), (Falling(), "reference"), (Nothing(), "auto")])
def test_every_backend_is_called_alike(encoding, backend):
    query, key, value, bias, _ = random_inputs(Shape(2, 4, 2, 3, 5))
    given = bias if isinstance(encoding, DistanceBias) else None
    actual = chosen(encoding, backend=backend).attend(query, key, value, given, scale=SCALE)
    exact = attend_by_query(query, key, value, 0 * bias if given is None else bias)
    torch.testing.assert_close(actual, exact)
