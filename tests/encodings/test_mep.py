"""MEP, against kernels averaged in plain fp64 and against the merge of single-kernel attentions."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.kernels import AnyKernel, Exponential, Gaussian, Logarithmic, Power
from megatron_mep.encodings.mep import Mep
from tests.encodings.oracle import attend, bias_of, fp64, scores, values, weights_of

SLOPES = [2.0**-exponent for exponent in range(1, 9)]
"""Of eight heads."""
LENGTH = 13
DISTANCES = [0, 1, 2, 3, 17, 255, 256, 257, 131_071]


def exponential(slope: float, distance: int) -> float:
    return math.exp(-slope * distance)


def gaussian(slope: float, distance: int) -> float:
    return math.exp(-((slope * distance) ** 2))


def test_one_exponential_kernel_is_alibi_exactly() -> None:
    distance = torch.arange(131_072).float()
    for num_heads in (8, 12):
        alone = bias_of(Mep(kernels=(Exponential(),)), distance, num_heads)
        assert alone.equal(bias_of(Alibi(), distance, num_heads))


@pytest.mark.parametrize("kernel", [Exponential(), Gaussian(width=4)])
def test_two_equal_kernels_are_the_single_one(kernel: AnyKernel) -> None:
    distance = torch.arange(1000).double()
    for twice in (Mep(kernels=(kernel, kernel)), Mep(kernels=(kernel, kernel), mean="geometric")):
        # at distance 0 the bias is log(1/2 + 1/2), off from 0 by rounding
        torch.testing.assert_close(
            bias_of(twice, distance, 8), bias_of(Mep(kernels=(kernel,)), distance, 8), rtol=1e-12, atol=1e-15
        )


@pytest.mark.parametrize(
    ("encoding", "mean"),
    [
        (Mep(), lambda m, d: (exponential(m, d) + gaussian(m, d)) / 2),
        (
            Mep(kernels=(Exponential(weight=3), Gaussian(weight=1, width=4))),
            lambda m, d: 0.75 * exponential(m, d) + 0.25 * gaussian(m / 4, d),
        ),
        (
            Mep(kernels=(Exponential(), Gaussian(squared_slope=False), Gaussian(width=16, weight=0.5))),
            lambda m, d: 0.4 * exponential(m, d) + 0.4 * math.exp(-m * d * d) + 0.2 * gaussian(m / 16, d),
        ),
    ],
)
def test_bias_is_the_logarithm_of_the_weighted_mean(encoding: Mep, mean: Callable[[float, int], float]) -> None:
    bias = bias_of(encoding, torch.arange(64).double(), num_heads=8)
    expected = [[math.log(mean(slope, distance)) for distance in range(64)] for slope in SLOPES]
    # near distance 0 the mean is almost 1, and its logarithm keeps the mean's absolute error
    torch.testing.assert_close(bias, fp64(expected), rtol=1e-12, atol=1e-15)


def test_geometric_mean_averages_the_biases() -> None:
    encoding = Mep(kernels=(Exponential(weight=3), Gaussian(weight=1)), mean="geometric")
    expected = [[-(0.75 * m * d + 0.25 * (m * d) ** 2) for d in DISTANCES] for m in SLOPES]
    torch.testing.assert_close(bias_of(encoding, fp64(DISTANCES), 8), fp64(expected), rtol=1e-12, atol=0)


def test_averaging_kernels_and_averaging_biases_are_different_models() -> None:
    distance = torch.arange(64).double()
    arithmetic, geometric = bias_of(Mep(), distance, 8), bias_of(Mep(mean="geometric"), distance, 8)
    assert (arithmetic >= geometric - 1e-12).all(), "an arithmetic mean is at least the geometric one"
    assert arithmetic[0, 63] > geometric[0, 63] + 100


def test_numbers_worked_by_hand() -> None:
    distance = fp64([16.0, 64.0, 128.0])
    slowest = bias_of(Mep(kernels=(Exponential(), Gaussian(squared_slope=False))), distance, 8)[-1]
    torch.testing.assert_close(slowest[:2], fp64([-0.425, -0.943]), atol=5e-4, rtol=0)
    torch.testing.assert_close(bias_of(Mep(), distance, 8)[-1, 2], fp64(-0.367), atol=5e-4, rtol=0)


def test_far_tail_is_alibi_less_the_logarithm_of_two() -> None:
    distance = fp64([131_071.0])
    torch.testing.assert_close(
        bias_of(Mep(), distance, 8), bias_of(Alibi(), distance, 8) - math.log(2), rtol=1e-14, atol=0
    )


def test_attention_is_the_merge_of_single_kernel_attentions() -> None:
    score, value = scores(1, LENGTH), values(2, LENGTH)
    shares = (0.75, 0.25)
    encoding = Mep(kernels=(Exponential(weight=3), Gaussian(weight=1, width=2)))
    for head, slope in enumerate(SLOPES):
        kernels = (partial(exponential, slope), partial(gaussian, slope / 2))
        single = [attend(score, value, list(map(kernel, range(LENGTH)))) for kernel in kernels]
        expected = []
        for query in range(LENGTH):
            parts = [share * math.exp(sums[query]) for share, (_, sums) in zip(shares, single, strict=True)]
            outputs = [output[query] for output, _ in single]
            expected.append(math.fsum(map(math.prod, zip(parts, outputs, strict=True))) / math.fsum(parts))
        bias = bias_of(encoding, torch.arange(LENGTH).double(), 8)[head]
        ours = torch.softmax(_masked(score, bias), dim=-1) @ fp64(value)
        torch.testing.assert_close(ours, fp64(expected), rtol=1e-12, atol=1e-15)


def test_attention_is_softmax_multiplied_by_the_mean_kernel_and_normalised_again() -> None:
    score = scores(3, LENGTH)
    for head, slope in enumerate(SLOPES):
        bias = bias_of(Mep(), torch.arange(LENGTH).double(), 8)[head]
        ours = torch.softmax(_masked(score, bias), dim=-1)
        for query, row in enumerate(score):
            total = math.fsum(math.exp(row[key]) for key in range(query + 1))
            scaled = [
                math.exp(row[key]) / total * (exponential(slope, query - key) + gaussian(slope, query - key)) / 2
                for key in range(query + 1)
            ]
            expected = fp64([part / math.fsum(scaled) for part in scaled])
            torch.testing.assert_close(ours[query, : query + 1], expected, rtol=1e-12, atol=0)


def test_it_is_finite_where_the_mean_itself_underflows() -> None:
    distance = torch.tensor([300.0])
    steepest = (torch.exp(-distance / 2) + torch.exp(-((distance / 2) ** 2))) / 2
    assert steepest.log().isinf(), "otherwise this shows nothing"
    assert bias_of(Mep(), distance, 8)[0].tolist() == pytest.approx([-150 - math.log(2)])


def test_parameter_free_variant_is_two_power_kernels_with_fixed_exponents() -> None:
    # 2 sigmoid(40) is 2 in fp64; stored slopes of the power kernel multiply d^2, so the Gaussian's enter squared
    slope = fp64(SLOPES)
    inverse = {0: slope.expm1().log(), 1: slope.square().expm1().log()}
    frozen = Mep(kernels=(Power(), Power())).of_distance(
        torch.arange(1000).double(),
        r1_0=inverse[0],
        r2_0=torch.zeros(8).double(),
        r1_1=inverse[1],
        r2_1=torch.full((8,), 40.0).double(),
    )
    expected = bias_of(Mep(), torch.arange(1000).double(), 8)
    torch.testing.assert_close(frozen, expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("kernel", [Exponential, Gaussian])
def test_learned_slopes_start_at_the_fixed_bias(kernel: type[Exponential] | type[Gaussian]) -> None:
    distance = torch.arange(131_072).float()
    fixed, learned = (Mep(kernels=(Exponential(learned=is_learned), kernel(learned=is_learned, width=4)))
                      for is_learned in (False, True))  # fmt: skip
    torch.testing.assert_close(
        bias_of(learned, distance, 8), bias_of(fixed, distance, 8), rtol=1e-6, atol=2 * torch.finfo(torch.float32).eps
    )


def test_weights_carry_the_index_of_their_kernel() -> None:
    encoding = Mep(kernels=(Logarithmic(), *[Exponential()] * 9, Gaussian(width=2), Power()))
    weights = weights_of(encoding, 8)
    assert set(weights) == {"r1_0", "r2_0", *(f"slope_{index}" for index in range(1, 11)), "r1_11", "r2_11"}
    assert weights["slope_10"].equal(weights["slope_1"] / 2), "two-digit indices end in one-digit ones"
    fastest = encoding.of_distance(torch.tensor([5000.0]), **{**weights, "slope_10": torch.zeros(8)})
    assert (fastest > math.log(1 / 12) - 1e-5).all(), "a Gaussian without slope keeps its share at any distance"


@pytest.mark.parametrize(
    ("kernels", "learned"),
    [
        ((Exponential(), Gaussian()), False),
        ((Exponential(), Gaussian(learned=True)), True),
        ((Exponential(), Logarithmic()), True),
        ((Gaussian(slopes=(0.5, 0.25)),), False),
        ((Gaussian(slopes=(0.5, 0.25), learned=True),), True),
    ],
)
def test_it_learns_where_a_kernel_does(kernels: tuple[AnyKernel, ...], learned: bool) -> None:
    assert Mep(kernels=kernels).learned is learned


def test_stated_slopes_are_those_of_all_heads() -> None:
    slopes = (0.5, 0.3, 0.1)
    bias = bias_of(Mep(kernels=(Exponential(slopes=slopes),)), torch.tensor([10.0]), 3)
    assert bias[:, 0].tolist() == pytest.approx([-5, -3, -1])


def test_wrong_numbers_of_slopes_are_all_told_at_their_kernels() -> None:
    encoding = Mep(kernels=(Exponential(slopes=(0.5,)), Gaussian(), Gaussian(slopes=(0.5, 0.25, 0.1))))
    with pytest.raises(ConfigError) as told:
        encoding.weights(2, torch.Generator())
    assert [mistake.key for mistake in told.value.mistakes] == ["kernels[0].slopes", "kernels[2].slopes"]


@pytest.mark.parametrize(
    ("encoding", "published"),
    [
        (Alibi(), [9, 18, 36, 73, 147, 294, 589, 1178]),
        (Mep(kernels=(Gaussian(),)), [3, 7, 14, 29, 58, 116, 233, 466]),
        (Mep(kernels=(Gaussian(squared_slope=False),)), [2, 3, 5, 7, 10, 14, 20, 29]),
        (Mep(kernels=(Exponential(), Gaussian(squared_slope=False))), [8, 16, 34, 70, 142, 287, 579, 1164]),
        (Mep(), [7, 15, 31, 63, 127, 254, 508, 1016]),
        (Mep(kernels=(Exponential(), Gaussian(width=4))), [14, 28, 56, 113, 226, 452, 903, 1807]),
        (Mep(kernels=(Exponential(), Gaussian(width=8))), [28, 57, 114, 229, 458, 916, 1832, 3663]),
        (Mep(kernels=(Exponential(), Gaussian(width=16))), [57, 115, 231, 462, 924, 1848, 3696, 7392]),
    ],
    ids=["alibi", "gaussian", "gaussian-same", "same", "squared", "width-4", "width-8", "width-16"],
)
def test_receptive_field_of_each_head(encoding: Alibi | Mep, published: list[int]) -> None:
    """The smallest distance up to which, distance 0 included, more than 99 % of the kernel's whole mass lies."""
    mass = bias_of(encoding, torch.arange(16_384).double(), 8).exp().cumsum(-1)
    assert (mass > 0.99 * mass[:, -1:]).int().argmax(-1).tolist() == published


def _masked(score: list[list[float]], bias: torch.Tensor) -> torch.Tensor:
    position = torch.arange(LENGTH)
    distance = position[:, None] - position[None, :]
    return (fp64(score) + bias[distance.clamp(min=0)]).masked_fill(distance < 0, -math.inf)
