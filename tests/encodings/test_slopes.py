"""ALiBi's slopes, against the paper's words: a geometric series whose first term and ratio are 2^(-8/H)."""

from fractions import Fraction

import pytest
import torch

from megatron_mep.encodings.slopes import alibi_slopes
from tests.encodings.oracle import fp64


def test_eight_heads_have_the_slopes_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@pytest.mark.parametrize("num_heads", [1, 2, 4, 16, 32, 128])
def test_powers_of_two_have_the_series_whose_ratio_is_its_first_term(num_heads: int) -> None:
    ratio = 2.0 ** float(Fraction(-8, num_heads))
    slope, series = 1.0, []
    for _ in range(num_heads):
        slope *= ratio
        series.append(slope)
    torch.testing.assert_close(alibi_slopes(num_heads).double(), fp64(series), rtol=1e-7, atol=0)


def test_twelve_heads_take_every_second_slope_of_sixteen_after_those_of_eight() -> None:
    exponents = torch.log2(alibi_slopes(12).double())
    expected = fp64([-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5])
    torch.testing.assert_close(exponents, expected, rtol=1e-7, atol=0)


def test_three_heads_worked_by_hand() -> None:
    assert alibi_slopes(3).tolist() == [2**-4, 2**-8, 2**-2]


@pytest.mark.parametrize("num_heads", range(1, 65))
def test_every_head_has_a_slope_of_its_own(num_heads: int) -> None:
    slopes = alibi_slopes(num_heads)
    assert slopes.shape == (num_heads,)
    assert slopes.dtype == torch.float32
    assert len(set(slopes.tolist())) == num_heads
    assert 2**-8 <= slopes.min() <= slopes.max() < 1


def test_slopes_are_fp32_whatever_the_default_type() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert alibi_slopes(12).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
