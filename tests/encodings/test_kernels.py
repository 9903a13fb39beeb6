"""Each kernel of the distance, against its formula in Python's floats."""

import math
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import softplus

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.kernels import (
    Cauchy,
    Exponential,
    Gaussian,
    Kernel,
    Logarithmic,
    Power,
    PowerLogarithmic,
    unbounded,
)
from tests.encodings.oracle import fp64

SLOPES = (0.5, 0.125, 0.0078125)
"""Powers of two, which fp32 holds exactly."""
DISTANCES = (0, 1, 2, 3, 17, 255, 256, 257, 4099)


def decay(kernel: Kernel, weights: dict[str, Tensor]) -> Tensor:
    return kernel.decay(fp64(DISTANCES), **weights)


def weights_of(kernel: Kernel, num_heads: int = len(SLOPES), seed: int = 3) -> dict[str, Tensor]:
    declared = kernel.weights(num_heads, torch.Generator().manual_seed(seed))
    return {name: weight.value for name, weight in declared.items()}


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        (Exponential(slopes=SLOPES), lambda m, d: m * d),
        (Exponential(slopes=SLOPES, width=4), lambda m, d: m * d / 4),
        (Gaussian(slopes=SLOPES), lambda m, d: (m * d) ** 2),
        (Gaussian(slopes=SLOPES, width=8), lambda m, d: (m * d / 8) ** 2),
        (Gaussian(slopes=SLOPES, squared_slope=False), lambda m, d: m * d**2),
        (Gaussian(slopes=SLOPES, squared_slope=False, width=16), lambda m, d: m * d**2 / 16),
        (Cauchy(slopes=SLOPES), lambda m, d: math.log(1 + (m * d) ** 2)),
        (Cauchy(slopes=SLOPES, width=8), lambda m, d: math.log(1 + (m * d / 8) ** 2)),
    ],
)
def test_sloped_kernels_follow_their_formula(kernel: Kernel, formula: Callable[[float, int], float]) -> None:
    expected = fp64([[formula(slope, d) for d in DISTANCES] for slope in SLOPES])
    torch.testing.assert_close(decay(kernel, weights_of(kernel)), expected, rtol=1e-14, atol=0)


def test_log_kernel_follows_its_formula() -> None:
    r1, r2 = (0.01, 1.0, 1.98), (0.99, 0.5, 0.01)
    stored = {"r1": unbounded(fp64(r1)), "r2": unbounded(fp64(r2))}
    expected = [[one * math.log(1 + two * d) for d in DISTANCES] for one, two in zip(r1, r2, strict=True)]
    torch.testing.assert_close(decay(Logarithmic(), stored), fp64(expected), rtol=1e-12, atol=0)


def test_power_kernel_follows_its_formula() -> None:
    r1, r2 = (0.01, 0.5, 0.99), (0.02, 1.0, 1.98)
    stored = {"r1": unbounded(fp64(r1)), "r2": torch.logit(fp64(r2) / 2)}
    expected = [[one * d**two for d in DISTANCES] for one, two in zip(r1, r2, strict=True)]
    torch.testing.assert_close(decay(Power(), stored), fp64(expected), rtol=1e-12, atol=0)


def test_power_kernel_passes_through_the_exponential_to_the_gaussian() -> None:
    slope = fp64(SLOPES)
    linear = decay(Power(), {"r1": unbounded(slope), "r2": torch.zeros(3, dtype=torch.float64)})
    torch.testing.assert_close(linear, decay(Exponential(), {"slope": slope}), rtol=1e-12, atol=0)
    # 2 sigmoid(40) is 2 in fp64
    square = decay(Power(), {"r1": unbounded(slope), "r2": torch.full((3,), 40.0, dtype=torch.float64)})
    torch.testing.assert_close(square, decay(Gaussian(squared_slope=False), {"slope": slope}), rtol=1e-12, atol=0)


def test_3log_kernel_starts_with_the_exponents_of_the_power_kernel() -> None:
    many = weights_of(PowerLogarithmic(), num_heads=10_000)
    r3 = 2 * torch.sigmoid(many["r3"])
    assert 0.0199 <= r3.min() <= 0.04
    assert 1.96 <= r3.max() <= 1.9801
    logarithmic = weights_of(Logarithmic(), num_heads=10_000)
    assert all(many[name].equal(logarithmic[name]) for name in logarithmic)


@pytest.mark.parametrize("kernel", [Logarithmic(), Power()])
def test_kerple_kernels_start_inside_the_bounds_of_the_published_code(kernel: Kernel) -> None:
    many = weights_of(kernel, num_heads=10_000)
    r1, r2 = softplus(many["r1"]), softplus(many["r2"])
    if isinstance(kernel, Power):
        r1, r2 = 2 * torch.sigmoid(many["r2"]), r1
    # the first is drawn from 2 U(0, 1), the second from U(0, 1), both at least 0.01 off the ends
    for drawn, top in ((r1, 2.0), (r2, 1.0)):
        assert 0.01 * top * 0.999 <= drawn.min() <= 0.02 * top
        assert 0.98 * top <= drawn.max() <= 0.99 * top * 1.001
        assert abs(drawn.mean() - top / 2) < 0.01 * top


@pytest.mark.parametrize("kernel", [Logarithmic(), Power(), PowerLogarithmic()])
def test_random_weights_are_those_of_the_generator(kernel: Kernel) -> None:
    first, again, other = weights_of(kernel, seed=3), weights_of(kernel, seed=3), weights_of(kernel, seed=4)
    assert all(first[name].equal(again[name]) for name in first)
    assert not any(first[name].equal(other[name]) for name in first)
    assert not first["r1"].equal(first["r2"])


def test_learned_slopes_start_at_the_fixed_ones() -> None:
    for width in (1, 4, 16):
        fixed = Gaussian(width=width)
        learned = Gaussian(width=width, learned=True)
        torch.testing.assert_close(
            learned.decay(torch.tensor(DISTANCES).float(), **weights_of(learned, num_heads=16)),
            fixed.decay(torch.tensor(DISTANCES).float(), **weights_of(fixed, num_heads=16)),
            # a squared slope has twice its relative error, and the stored number of a slope 2^-12 an error of 2^-22
            rtol=2e-6,
            atol=0,
        )


def test_unbounded_is_the_inverse_of_softplus_from_tiny_to_large() -> None:
    positive = torch.logspace(-5, 2, 2000, dtype=torch.float32)
    exact = [math.log1p(math.exp(x)) if x < 30 else x for x in unbounded(positive).double().tolist()]
    # the stored number is below 16: half a unit in its last place is 2^-21
    torch.testing.assert_close(fp64(exact), positive.double(), rtol=2**-21 * 1.01, atol=0)


def test_initial_values_are_fp32_whatever_the_default_type() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        for kernel in (
            Exponential(),
            Gaussian(slopes=SLOPES, learned=True),
            Logarithmic(),
            Power(),
            PowerLogarithmic(),
        ):
            assert {value.dtype for value in weights_of(kernel).values()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)


def test_stated_slopes_are_one_a_head() -> None:
    with pytest.raises(ConfigError) as told:
        Gaussian(slopes=SLOPES).weights(8, torch.Generator())
    (mistake,) = told.value.mistakes
    assert (mistake.key, mistake.value) == ("slopes", list(SLOPES))
    assert "8 heads" in mistake.rule
    assert "state 8 slopes" in mistake.remedy


@pytest.mark.parametrize("options", [{"width": 0}, {"weight": 0}, {"weight": -1}, {"slopes": (0.5, 0.0)}])
def test_widths_weights_and_slopes_are_positive(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Exponential.model_validate(options)


@pytest.mark.parametrize("kernel", [Logarithmic, Power, PowerLogarithmic])
def test_kerple_kernels_have_no_fixed_form(kernel: type[Kernel]) -> None:
    with pytest.raises(ValidationError):
        kernel.model_validate({"learned": False})
