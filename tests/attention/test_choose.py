"""Which backend serves what, and what a user is told where none does."""

import sys
from typing import ClassVar
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from megatron_mep.attention import cpu_rows, rows
from megatron_mep.attention.backend import Backend
from megatron_mep.attention.choose import choose
from megatron_mep.attention.position_bias import position_bias_attention
from megatron_mep.attention.reference import dense_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.attention.work import Work
from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.base import DistanceBias, Encoding, Rotation, Weight
from tests.attention.oracle import SCALE, Shape, attend_by_query, random_inputs
from tests.encodings.examples import Cable, Cope, Dape, Fire, Fox


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
    asked = {"device_type": "cpu", "dtype": torch.float32, "head_size": 64, "training": True, "dropout": 0.0}
    return choose(encoding, **(asked | changes))


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("encoding", [Nothing(), Turning()])
def test_encodings_without_a_bias_are_plain_on_any_device(encoding, device_type):
    backend = chosen(encoding, device_type=device_type)
    assert backend.name == "plain"
    assert encoding.name in backend.reason


@pytest.fixture
def built(monkeypatch):
    """As if the kernel were there."""
    monkeypatch.setattr(cpu_rows, "why_absent", lambda: None)


@pytest.fixture
def absent(monkeypatch):
    """As if it could not be compiled."""
    monkeypatch.setattr(cpu_rows, "why_absent", lambda: "there is no C++ compiler: g++")


kinds = pytest.mark.parametrize(("encoding", "kind"), [(Falling(), "fixed"), (LearnedFalling(), "learned")])


@kinds
@pytest.mark.usefixtures("built")
def test_a_bias_by_distance_is_compiled_on_a_cpu(encoding, kind):
    backend = chosen(encoding)
    assert backend.name == "compiled"
    assert backend.reason.startswith(f"{kind} bias by distance on a CPU by our own kernel, compiled here: exact")
    assert not backend.counts_work
    assert "computed in fp32" in chosen(encoding, dtype=torch.bfloat16).reason


@kinds
@pytest.mark.usefixtures("absent")
def test_a_bias_by_distance_is_toeplitz_on_a_cpu_without_a_compiler(encoding, kind):
    backend = chosen(encoding)
    assert backend.name == "toeplitz"
    assert backend.reason.startswith(f"{kind} bias by distance on a CPU by torch's kernel: exact")
    assert backend.reason.endswith("; compiled has no kernel here: there is no C++ compiler: g++")


@pytest.mark.usefixtures("absent")
def test_toeplitz_that_was_named_does_not_look_for_a_compiler():
    assert "compile" not in chosen(Falling(), backend="toeplitz").reason


@pytest.mark.usefixtures("absent")
def test_compiled_that_was_named_is_refused_without_a_compiler():
    with pytest.raises(ConfigError) as refusal:
        chosen(Falling(), backend="compiled")
    (mistake,) = refusal.value.mistakes
    assert "no C++ compiler" in mistake.rule
    assert "CXX" in mistake.remedy


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("asked", [{"dtype": torch.float64}, {"head_size": 12}, {"head_size": 264}])
def test_what_the_kernel_cannot_compute_is_toeplitz(asked):
    backend = chosen(Falling(), **asked)
    assert backend.name == "toeplitz"
    assert "; compiled computes" in backend.reason


def test_nothing_is_compiled_for_what_is_refused_anyway(monkeypatch):
    monkeypatch.setattr(cpu_rows, "why_absent", lambda: pytest.fail("looked for a compiler"))
    for asked in ({"device_type": "cuda"}, {"dropout": 0.1}, {"head_size": 12}):
        with pytest.raises(ConfigError):
            chosen(Falling(), backend="compiled", **asked)


def test_a_bias_by_distance_drops_what_it_may():
    backend = chosen(Falling(), epsilon=1e-3)
    assert "drops at most 0.001 of any softmax" in backend.reason
    assert backend.counts_work
    query, key, value, bias, _ = random_inputs(Shape(1, 2, 2, 1200, 1200))
    work = Work()
    backend.attend(query, key, value, bias, scale=SCALE, work=work)
    assert work.kept < 1
    assert 0 < work.dropped <= 1e-3


def test_nothing_else_drops_anything():
    assert not chosen(Nothing(), epsilon=1e-3).counts_work
    with pytest.raises(ConfigError, match="attention_epsilon"):
        chosen(Falling(), epsilon=1e-3, backend="reference")


@pytest.mark.parametrize("backend", ["auto", "toeplitz"])
def test_half_precision_is_told_what_it_is_computed_in(backend):
    assert "fp32" in chosen(Falling(), dtype=torch.bfloat16, backend=backend).reason
    assert "fp32" not in chosen(Falling(), backend=backend).reason


@pytest.mark.parametrize("encoding", [Nothing(), Turning(), Falling()])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_reference_serves_everything_when_it_is_named(encoding, device_type):
    backend = chosen(encoding, device_type=device_type, backend="reference")
    assert (backend.name, backend.attend) == ("reference", dense_attention)
    assert "4096 positions" in backend.reason


def test_a_bias_on_cuda_has_kernels_of_its_own(monkeypatch):
    assert chosen(Falling(), device_type="cuda").name == "flex"
    monkeypatch.setattr(rows, "package_is_there", lambda name: name == "triton")
    monkeypatch.setitem(sys.modules, "megatron_mep.attention.triton_toeplitz", MagicMock())
    assert chosen(LearnedFalling(), device_type="cuda").name == "triton"
    assert chosen(Falling(), device_type="cuda", backend="triton").name == "triton"
    assert chosen(LearnedFalling(), device_type="cuda", head_size=80, training=False).name == "flex"


@pytest.mark.parametrize(
    ("backend", "asked", "rule"),
    [
        ("triton", {}, "{backend} computes on cuda, not on cpu"),
        ("flex", {}, "{backend} computes on cuda, not on cpu"),
        ("toeplitz", {"device_type": "cuda"}, "toeplitz computes on cpu, not on cuda"),
        ("compiled", {"device_type": "cuda"}, "compiled computes on cpu, not on cuda"),
        ("compiled", {"dtype": torch.float64}, "compiled computes in fp32, not in float64"),
        ("compiled", {"head_size": 12}, "compiled computes heads of a multiple of 8 up to 256, not of 12"),
        ("triton", {"device_type": "cuda", "head_size": 80}, "triton computes heads of size 16, 32, 64, 128, not 80"),
        ("flex", {"device_type": "cuda", "head_size": 8}, "flex computes heads of size 16 and more, not 8"),
    ],
)
def test_a_backend_that_is_named_serves_or_is_refused(backend, asked, rule):
    with pytest.raises(ConfigError) as refusal:
        chosen(Falling(), backend=backend, **asked)
    assert rule.format(backend=backend) in [mistake.rule for mistake in refusal.value.mistakes]
    assert all(mistake.key == "model.attention_backend" for mistake in refusal.value.mistakes)


def test_a_name_for_biases_stands_aside_where_there_is_none():
    assert chosen(Turning(), backend="flex").name == "plain"


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_dropout_with_a_bias_is_refused_in_training(backend):
    with pytest.raises(ConfigError) as refusal:
        chosen(Falling(), dropout=0.1, backend=backend)
    (mistake,) = refusal.value.mistakes
    assert (mistake.key, mistake.value) == ("model.attention_dropout", 0.1)
    assert mistake.rule.startswith("must be 0 in training under falling")
    assert mistake.remedy.startswith("set it to 0")


def test_dropout_is_nothing_outside_training():
    assert chosen(Falling(), dropout=0.1, training=False, backend="toeplitz").name == "toeplitz"


def test_all_that_stands_against_a_backend_is_told_at_once():
    with pytest.raises(ConfigError) as refusal:
        chosen(Falling(), device_type="cuda", dropout=0.1, backend="toeplitz")
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


@pytest.mark.parametrize(
    ("encoding", "backend"),
    [(Falling(), "auto"), (Falling(), "toeplitz"), (Falling(), "reference"), (Nothing(), "auto")],
)
def test_every_backend_is_called_alike(encoding, backend):
    query, key, value, bias, _ = random_inputs(Shape(2, 4, 2, 3, 5))
    given = bias if isinstance(encoding, DistanceBias) else None
    actual = chosen(encoding, backend=backend).attend(query, key, value, given, scale=SCALE)
    exact = attend_by_query(query, key, value, 0 * bias if given is None else bias)
    torch.testing.assert_close(actual, exact)


needing_scores = pytest.mark.parametrize("encoding", [Fire(), Fox(), Cable(), Cope(), Dape()])


@needing_scores
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_what_needs_the_scores_is_chunked_on_any_device(encoding, device_type):
    backend = chosen(encoding, device_type=device_type, dtype=torch.bfloat16)
    assert backend.name == "chunked"
    assert encoding.name in backend.reason
    assert "fp32" in backend.reason
    assert "fp32" not in chosen(encoding).reason


@needing_scores
def test_what_needs_the_scores_is_told_apart_from_biases_by_distance(encoding):
    with pytest.raises(ConfigError) as refusal:
        chosen(encoding, backend="reference", dropout=0.1)
    keys = [mistake.key for mistake in refusal.value.mistakes]
    assert keys == ["model.attention_dropout", "model.attention_backend"]
    assert f"must be auto under {encoding.name}" in refusal.value.mistakes[1].rule


def test_the_kind_says_which_function_attends():
    assert chosen(Fire()).attend is position_bias_attention
    assert chosen(Cope()).attend is score_mix_attention
    query, key, value, *_ = random_inputs(Shape(1, 2, 2, 3, 5))
    falling = torch.arange(5.0).expand(1, 2, 5)
    for gain in (None, torch.ones(1, 2, 3)):
        actual = chosen(Fox()).attend(query, key, value, (falling, gain), scale=SCALE)
        torch.testing.assert_close(actual, attend_by_query(query, key, value, -torch.arange(5.0).expand(2, 5)))
