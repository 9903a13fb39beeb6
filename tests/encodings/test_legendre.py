"""Legendre's polynomials, against Rodrigues' formula in whole numbers and against their values at the ends."""

import math
from fractions import Fraction

import pytest
import torch

from megatron_mep.encodings.legendre import Legendre, polynomials
from tests.encodings.oracle import fp64


def exact(order: int, argument: Fraction) -> float:
    """P_n(x) = 2^-n sum_k binomial(n, k)^2 (x - 1)^(n - k) (x + 1)^k, in fractions."""
    terms = (math.comb(order, k) ** 2 * (argument - 1) ** (order - k) * (argument + 1) ** k for k in range(order + 1))
    return float(sum(terms) / 2**order)


@pytest.mark.parametrize("hidden_size", [4, 7])
def test_dimensions_take_on_the_polynomials_of_the_position(hidden_size: int) -> None:
    positions = [0, 1, 2, 3, 11, 64]
    added = Legendre().added(fp64(positions), hidden_size)
    expected = [[exact(i, Fraction(-1) + Fraction(2 * c, hidden_size)) for c in range(hidden_size)] for i in positions]
    torch.testing.assert_close(added, fp64(expected), rtol=1e-13, atol=1e-14)


def test_positions_come_in_any_order_and_shape() -> None:
    places = torch.tensor([[5, 0, 5], [131, 2, 7]])
    added = Legendre().added(places.double(), 6)
    assert added.shape == (2, 3, 6)
    for sample in range(2):
        for token in range(3):
            alone = Legendre().added(places[sample, token, None].double(), 6)[0]
            assert added[sample, token].equal(alone)


def test_they_stay_within_one_and_alternate_at_minus_one() -> None:
    added = Legendre().added(torch.arange(3000.0), 16)
    assert added.dtype == torch.float32
    assert added.abs().max() == 1
    assert added[:, 0].tolist() == [(-1.0) ** position for position in range(3000)]


def test_far_orders_follow_the_asymptotic_formula() -> None:
    """Laplace's: P_n(cos t) = sqrt(2 / (pi n sin t)) cos((n + 1/2) t - pi/4), but for terms of n^(-3/2)."""
    order = 20_000
    angle = fp64([0.5, 1.0, 1.7, 2.5])
    expected = (2 / (math.pi * order * angle.sin())).sqrt() * ((order + 0.5) * angle - math.pi / 4).cos()
    torch.testing.assert_close(polynomials(order + 1, angle.cos())[order], expected, rtol=0, atol=1e-6)


def test_orthogonal_over_the_interval() -> None:
    # the midpoints of 20000 intervals integrate polynomials of these orders to 10^-6
    argument = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 10_000 - 1
    values = polynomials(6, argument)
    expected = torch.diag(2 / (2 * torch.arange(6).double() + 1))
    torch.testing.assert_close(values @ values.T / 10_000, expected, rtol=0, atol=1e-6)
