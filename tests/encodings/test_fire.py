"""FIRE, against its formula in loops over queries and keys."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.kernels import unbounded

LENGTH = 12


def weights_of(encoding: Fire, num_heads: int = 3) -> dict[str, Tensor]:
    declared = encoding.weights(num_heads, torch.Generator().manual_seed(7))
    return {name: weight.value.double() for name, weight in declared.items()}


def bias_of(encoding: Fire, weights: dict[str, Tensor], length: int = LENGTH) -> Tensor:
    position = torch.arange(length).double()
    return encoding.of_positions(position, position, **weights)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu"])
def test_bias_follows_its_formula(activation: str) -> None:
    encoding = Fire.model_validate({"activation": activation, "width": 5, "threshold": 4.0})
    c, multiplier = 0.37, 1.6
    weights = weights_of(encoding)
    weights |= {
        name: unbounded(torch.tensor([value]).double()) for name, value in (("c", c), ("multiplier", multiplier))
    }
    bias = bias_of(encoding, weights)
    off = 0.01 if activation == "leaky_relu" else 0.0
    c, multiplier = (float(torch.tensor(value, dtype=torch.float32)) for value in (c, multiplier))
    for query in range(LENGTH):
        longest = max(multiplier * 4, query)
        for key in range(query + 1):
            ratio = math.log(c * (query - key) + 1) / (math.log(c * longest + 1) + 1e-6)
            hidden = (weights["inner"] * ratio + weights["inner_bias"]).tolist()
            active = [unit if unit > 0 else off * unit for unit in hidden]
            for head, outer in enumerate(weights["outer"].tolist()):
                expected = math.fsum(map(math.prod, zip(active, outer, strict=True)))
                assert math.isclose(bias[head, query, key], expected, rel_tol=1e-12, abs_tol=1e-14)


def test_it_is_by_distance_up_to_the_threshold_alone() -> None:
    weights = weights_of(Fire(threshold=8.5))
    bias = bias_of(Fire(threshold=8.5), weights)
    torch.testing.assert_close(bias[:, 8, 5], bias[:, 5, 2], rtol=1e-12, atol=1e-12)
    assert (bias[:, 11, 8] - bias[:, 5, 2]).abs().max() > 1e-3


def test_one_linear_unit_is_a_logarithm_of_the_distance_that_ends_at_the_same_value() -> None:
    encoding = Fire(width=1, threshold=1e-3)
    weights = weights_of(encoding) | {
        "inner": torch.ones(1).double(),
        "inner_bias": torch.zeros(1).double(),
        "outer": torch.tensor([[-2.0]]).double(),
    }
    bias = bias_of(encoding, weights)[0]
    # whatever the query, the ratio of its first key is 1
    torch.testing.assert_close(bias[1:, 0], torch.full((LENGTH - 1,), -2.0).double(), rtol=2e-5, atol=0)
    assert (bias[LENGTH - 1].diff() > 0).all()


def test_first_values_are_as_stated() -> None:
    encoding = Fire(c=0.7, threshold=64.0, width=1000)
    declared = encoding.weights(40, torch.Generator().manual_seed(0))
    raw = {name: weight.value for name, weight in declared.items()}
    assert math.isclose(torch.nn.functional.softplus(raw["c"]).item(), 0.7, rel_tol=1e-6)
    assert math.isclose(torch.nn.functional.softplus(raw["multiplier"]).item(), 1.0, rel_tol=1e-6)
    for name, bound in (("inner", 1.0), ("inner_bias", 1.0), ("outer", 1000**-0.5)):
        size = raw[name].abs()
        assert 0.98 * bound < size.max() <= bound
        assert abs(size.mean() - bound / 2) < 0.05 * bound
    assert {name for name, weight in declared.items() if weight.per_head} == {"outer"}
    assert all(weight.learned for weight in declared.values())


def test_queries_in_chunks_have_the_bias_of_all_at_once() -> None:
    encoding, weights = Fire(threshold=5.0), weights_of(Fire())
    whole, position = bias_of(encoding, weights), torch.arange(LENGTH).double()
    for first, last in ((0, 4), (4, 11), (11, 12)):
        part = encoding.of_positions(position[first:last], position[:last], **weights)
        torch.testing.assert_close(part, whole[:, first:last, :last], rtol=1e-12, atol=1e-14)


def test_the_threshold_learns_from_queries_before_it_alone() -> None:
    encoding = Fire(threshold=6.5)
    weights = {name: weight.requires_grad_() for name, weight in weights_of(encoding).items()}
    bias = bias_of(encoding, weights)
    before, after = (
        torch.autograd.grad(part.square().sum(), weights["multiplier"], retain_graph=True)[0]
        for part in (bias[:, :7], bias[:, 7:])
    )
    assert before.abs().sum() > 0
    assert after.abs().sum() == 0
