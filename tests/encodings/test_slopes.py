"""ALiBi's slopes, against the paper's words: a geometric series whose first term and ratio are 2^(-8/H).

And their balanced order, against the work of windows, which are as long as a reach divided by the slope.
"""

from fractions import Fraction

import pytest
import torch

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias
from megatron_mep.encodings.kernels import AnyKernel, Exponential, Gaussian, Logarithmic, Power
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.slopes import alibi_slopes
from tests.encodings.oracle import bias_of, fp64, weights_of


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


@pytest.mark.parametrize("num_heads", [*range(1, 65), 80, 96, 128])
def test_balanced_slopes_are_the_published_ones_in_one_order(num_heads: int) -> None:
    published, balanced = alibi_slopes(num_heads), alibi_slopes(num_heads, "balanced")
    assert balanced.dtype == torch.float32
    assert sorted(balanced.tolist()) == sorted(published.tolist())
    assert alibi_slopes(num_heads, "balanced").equal(balanced)


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        # the flattest; beside the second in the other half; and back, once both halves hold two of about its work
        (4, [-8, -2, -6, -4]),
        (8, [-8, -1, -5, -4, -7, -2, -6, -3]),
        (6, [-8, -1, -2, -6, -4, -3]),
    ],
)
def test_few_heads_are_balanced_as_by_hand(num_heads: int, exponents: list[float]) -> None:
    assert torch.log2(alibi_slopes(num_heads, "balanced")).tolist() == exponents


REACH = 30.0
"""Distance times slope at which windows end: what 1e-6 of a row's softmax comes to where scores are at most 8."""


def imbalance(work: list[float], tensor_size: int) -> float:
    """The work of the busiest rank over the mean."""
    share = len(work) // tensor_size
    ranks = [sum(work[first : first + share]) for first in range(0, len(work), share)]
    return max(ranks) / (sum(ranks) / tensor_size)


def least_imbalance(work: list[float], tensor_size: int) -> float:
    """What no order can beat: somewhere the largest head stands, beside the smallest at best."""
    share = len(work) // tensor_size
    *others, largest = sorted(work)
    return max(1.0, (largest + sum(others[: share - 1])) / (sum(work) / tensor_size))


@pytest.mark.parametrize("num_heads", [4, 6, 8, 9, 10, 12, 15, 16, 20, 21, 24, 25, 32, 40, 48, 64, 96])
def test_balanced_shares_are_nearly_as_even_as_can_be_at_every_length(num_heads: int) -> None:
    for length in (1024, 2048, 4096, 8192, 16_384, 32_768, 131_072):
        work = [_pairs(REACH / slope, length) for slope in alibi_slopes(num_heads, "balanced").tolist()]
        for tensor_size in range(2, num_heads):
            if num_heads % tensor_size == 0:
                excess = imbalance(work, tensor_size) / least_imbalance(work, tensor_size)
                assert excess < 1.35, f"{tensor_size} ranks at {length}"


def _pairs(window: float, length: int) -> float:
    """Area under the diagonal, down to the window's end."""
    window = min(window, length)
    return window * length - window**2 / 2


@pytest.mark.parametrize("num_heads", [8, 16, 32, 64])
@pytest.mark.parametrize("tensor_size", [2, 4])
def test_the_published_order_leaves_ranks_idle(num_heads: int, tensor_size: int) -> None:
    published, balanced = (
        imbalance([1 / slope for slope in alibi_slopes(num_heads, order).tolist()], tensor_size)
        for order in ("published", "balanced")
    )
    assert published > 1.4 * balanced


@pytest.mark.parametrize("num_heads", [8, 12])
@pytest.mark.parametrize(
    ("published", "balanced"),
    [
        (Alibi(), Alibi(order="balanced")),
        (Mep(), Mep(order="balanced")),
        (
            Mep(kernels=(Exponential(width=2), Gaussian(squared_slope=False), Gaussian(learned=True))),
            Mep(
                kernels=(Exponential(width=2), Gaussian(squared_slope=False), Gaussian(learned=True)), order="balanced"
            ),
        ),
    ],
    ids=["alibi", "mep", "mep-three"],
)
def test_balanced_heads_are_the_published_ones_whole(
    published: DistanceBias, balanced: DistanceBias, num_heads: int
) -> None:
    """Each head keeps all its kernels: what moves is the head."""
    moved_to = [alibi_slopes(num_heads).tolist().index(slope) for slope in alibi_slopes(num_heads, "balanced").tolist()]
    assert moved_to != list(range(num_heads))
    distance = torch.arange(300.0)
    assert bias_of(balanced, distance, num_heads).equal(bias_of(published, distance, num_heads)[moved_to])


@pytest.mark.parametrize(
    "kernel", [Exponential(slopes=(0.5, 0.3, 0.1, 0.2)), Gaussian(slopes=(0.1, 0.2, 0.3, 0.4), learned=True),
               Logarithmic(), Power()]
)  # fmt: skip
def test_stated_slopes_and_random_values_stay_where_they_are(kernel: AnyKernel) -> None:
    published, balanced = (weights_of(Mep(kernels=(kernel,), order=order), 4) for order in ("published", "balanced"))
    assert published.keys() == balanced.keys()
    assert all(published[name].equal(balanced[name]) for name in published)
