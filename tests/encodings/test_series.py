"""Biases of convergent and divergent series, against the terms of the series in Python's floats."""

import math
from collections.abc import Callable

import pytest
import torch

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.kernels import Cauchy, Gaussian
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.series import GaussianBias, Series, SlopedBias, Type1, Type2
from megatron_mep.encodings.slopes import alibi_slopes
from tests.encodings.oracle import bias_of, fp64, weights_of

SLOPES = [2.0**-exponent for exponent in range(1, 9)]
"""Of eight heads."""
DISTANCES = [0, 1, 2, 3, 17, 50]
SERIES: list[tuple[SlopedBias, Callable[[float], float]]] = [
    (GaussianBias(), lambda y: math.exp(-(y**2))),
    (Type1(), lambda y: 1 / (1 + y**2)),
    (Type2(), lambda y: math.exp(-(math.log(3 + y) ** 2))),
    (Series(), lambda y: 1 / (1 + y)),
    (Series(terms="inverse_log"), lambda y: 1 / ((3 + y) * math.log(3 + y))),
    (Series(terms="log_inverse_square"), lambda y: (1 + math.log(1 + y)) / (1 + y) ** 2),
    (Series(terms="root"), lambda y: math.exp(-math.sqrt(y))),
    (Series(terms="three_quarters"), lambda y: math.exp(-0.5 * y**0.75)),
    (Series(terms="five_quarters"), lambda y: math.exp(-(y**1.25))),
]


@pytest.mark.parametrize(("encoding", "term"), SERIES)
@pytest.mark.parametrize("width", [1, 4])
def test_bias_is_the_logarithm_of_the_terms(encoding: SlopedBias, term: Callable[[float], float], width: int) -> None:
    stretched = encoding.model_copy(update={"width": width})
    expected = [[math.log(term(slope * d / width)) for d in DISTANCES] for slope in SLOPES]
    # the logarithm of a term that is almost 1 keeps the term's absolute error
    torch.testing.assert_close(bias_of(stretched, fp64(DISTANCES), 8), fp64(expected), rtol=1e-12, atol=1e-15)


def test_fourth_powers_go_on_where_their_exponential_underflows() -> None:
    expected = [[-((slope * d) ** 4) for d in DISTANCES] for slope in SLOPES]
    torch.testing.assert_close(bias_of(Series(terms="fourth"), fp64(DISTANCES), 8), fp64(expected), rtol=1e-12, atol=0)
    assert bias_of(Series(terms="fourth"), torch.tensor([131_071.0]), 8).isfinite().all()


@pytest.mark.parametrize("width", [1.0, 3.0])
def test_gaussian_and_type1_are_mep_of_one_kernel(width: float) -> None:
    distance = torch.arange(20_000).float()
    for num_heads in (8, 12):
        gaussian = bias_of(Mep(kernels=(Gaussian(width=width),)), distance, num_heads)
        assert bias_of(GaussianBias(width=width), distance, num_heads).equal(gaussian)
        cauchy = bias_of(Mep(kernels=(Cauchy(width=width),)), distance, num_heads)
        assert bias_of(Type1(width=width), distance, num_heads).equal(cauchy)


def test_gaussian_is_the_square_of_alibi() -> None:
    distance = torch.arange(1000).double()
    assert bias_of(GaussianBias(), distance, 12).equal(-bias_of(Alibi(), distance, 12).square())


@pytest.mark.parametrize(
    ("encoding", "converges"),
    [
        (GaussianBias(), True),
        (Type1(), True),
        (Type2(), True),
        (Series(), False),
        (Series(terms="inverse_log"), False),
        (Series(terms="log_inverse_square"), True),
        (Series(terms="root"), True),
        (Series(terms="three_quarters"), True),
        (Series(terms="five_quarters"), True),
        (Series(terms="fourth"), True),
    ],
)
def test_sums_converge_or_diverge_as_said(encoding: SlopedBias, converges: bool) -> None:
    # Cauchy's condensation: a falling series converges where the sum of 2^k a(2^k) does
    doubled = 2.0 ** torch.arange(40, 60, dtype=torch.float64)
    condensed = doubled.log() + bias_of(encoding, doubled, 8)[0]
    # condensed terms 1 or 1 / k, of sums that diverge, have slopes 0 or -1 by log k; those of the others are far below
    slope = (condensed[-1] - condensed[0]) / math.log(59 / 40)
    assert (slope < -2) == converges


def test_slopes_may_be_balanced() -> None:
    for kind in (GaussianBias, Type1, Type2, Series):
        balanced = weights_of(kind(order="balanced", width=2), 8)["slope"]
        assert balanced.equal(alibi_slopes(8, "balanced") / 2)
