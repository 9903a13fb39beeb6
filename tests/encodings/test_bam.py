"""BAM, against its formula in Python's floats and against ALiBi, where it starts."""

import math

import pytest
import torch

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.bam import Bam
from megatron_mep.encodings.series import GaussianBias
from megatron_mep.encodings.slopes import alibi_slopes
from tests.encodings.oracle import bias_of, fp64, weights_of

DISTANCES = [0, 1, 2, 3, 17, 255, 256, 257, 4099, 131_071]
SCALE, SHAPE, LOCATION = (-1.0, 0.5, -5.0), (1.3, 0.5, -0.7), (0.0, 2.0, -1.0)


def test_bias_follows_its_formula() -> None:
    weights = {"scale": fp64(SCALE), "shape": fp64(SHAPE), "location": fp64(LOCATION)}
    bias = Bam(learned_location=True).of_distance(fp64(DISTANCES), **weights)
    rows = zip(SCALE, SHAPE, LOCATION, strict=True)
    expected = [
        [-math.exp(s) * (abs(d - (math.exp(at) - math.exp(-at))) + 1e-5) ** p for d in DISTANCES] for s, p, at in rows
    ]
    torch.testing.assert_close(bias, fp64(expected), rtol=1e-12, atol=0)


def test_shape_1_is_alibi_less_a_constant() -> None:
    distance = torch.arange(131_072).double()
    weights = {"scale": alibi_slopes(12).double().log(), "shape": torch.ones(12).double()}
    constant = 1e-5 * alibi_slopes(12).double()[:, None]
    torch.testing.assert_close(
        Bam().of_distance(distance, **weights), bias_of(Alibi(), distance, 12) - constant, rtol=1e-12, atol=1e-15
    )


def test_it_starts_at_alibi() -> None:
    distance = torch.arange(131_072).float()
    for encoding in (Bam(), Bam(learned_location=True)):
        # stored is the logarithm of the slope, rounded
        torch.testing.assert_close(
            bias_of(encoding, distance, 12), bias_of(Alibi(), distance, 12), rtol=2e-6, atol=1e-5
        )


def test_shape_2_is_a_gaussian() -> None:
    distance = torch.arange(1, 1000).double()
    scale = 2 * alibi_slopes(8).double().log()
    bias = Bam(shape=2).of_distance(distance, scale=scale, shape=torch.full((8,), 2.0).double())
    # 1e-5 is added to the distance
    torch.testing.assert_close(bias, bias_of(GaussianBias(), distance, 8), rtol=3e-5, atol=0)


def test_a_shape_below_0_favours_far_keys() -> None:
    bias = Bam().of_distance(fp64(DISTANCES), scale=fp64([0.0]), shape=fp64([-0.5]))
    assert (bias.diff() > 0).all()


def test_gradients_are_finite_where_the_distance_is_the_location() -> None:
    weights = {name: weight.requires_grad_() for name, weight in weights_of(Bam(learned_location=True), 8).items()}
    Bam(learned_location=True).of_distance(torch.tensor([0.0]), **weights).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in weights.values())


@pytest.mark.parametrize("shape", [-40.0, -7.0, 7.0, 40.0])
@pytest.mark.parametrize("scale", [-20.0, 20.0])
def test_steep_shapes_leave_numbers_and_gradients_finite(shape: float, scale: float) -> None:
    distance = torch.tensor([0.0, 1.0, 131_071.0])
    unbounded = (distance + 1e-5) ** shape
    gradient = unbounded * (distance + 1e-5).log()
    assert abs(shape) < 40 or not (unbounded.isfinite() & gradient.isfinite()).all(), "otherwise this shows nothing"
    weights = {"scale": torch.tensor([scale]).requires_grad_(), "shape": torch.tensor([shape]).requires_grad_()}
    bias = Bam().of_distance(distance, **weights)
    assert bias.isfinite().all()
    bias.sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in weights.values())


def test_shapes_up_to_five_are_taken_as_they_are() -> None:
    shapes = fp64([-5.0, -4.9, 4.9, 5.0])
    bias = Bam().of_distance(fp64(DISTANCES), scale=torch.zeros(4).double(), shape=shapes)
    expected = [[-((d + 1e-5) ** p) for d in DISTANCES] for p in shapes.tolist()]
    torch.testing.assert_close(bias, fp64(expected), rtol=1e-12, atol=0)


def test_the_location_is_a_weight_only_where_it_learns() -> None:
    assert set(weights_of(Bam(), 4)) == {"scale", "shape"}
    assert weights_of(Bam(learned_location=True), 4)["location"].tolist() == [0.0] * 4
    assert weights_of(Bam(shape=0.5), 4)["shape"].tolist() == [0.5] * 4
