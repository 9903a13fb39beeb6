"""Sandwich, against the product of sinusoidal embeddings."""

import math

import pytest
import torch

from megatron_mep.encodings.sandwich import Sandwich
from tests.encodings.oracle import bias_of, fp64

DISTANCES = [0, 1, 2, 3, 17, 255, 256, 257, 4099, 131_071]


def embedding(position: int, size: int) -> list[float]:
    """The sinusoidal embedding, whose waves are counted from 1."""
    waves = [position * 10_000 ** (-2 * wave / size) for wave in range(1, size // 2 + 1)]
    return [part(angle) for angle in waves for part in (math.sin, math.cos)]


@pytest.mark.parametrize("size", [128, 16, 2])
@pytest.mark.parametrize("num_heads", [8, 12])
def test_bias_is_the_product_of_embeddings_at_the_compression_ratio(size: int, num_heads: int) -> None:
    bias = bias_of(Sandwich(size=size), fp64(DISTANCES), num_heads)
    first = embedding(0, size)
    for head in range(num_heads):
        # ratios are stored in fp32
        ratio = float(torch.tensor(num_heads / (8 * (head + 1)), dtype=torch.float32))
        for index, distance in enumerate(DISTANCES):
            product = math.fsum(map(math.prod, zip(first, embedding(distance, size), strict=True)))
            # the product keeps the rounding of size / 2 cosines, and of angles of up to 1e5
            assert math.isclose(bias[head, index], ratio * (product - size / 2), rel_tol=1e-12, abs_tol=1e-9)


def test_fp32_keeps_its_digits_near_and_far() -> None:
    near, far = torch.arange(64), torch.arange(131_008, 131_072)
    for distance in (near, far):
        narrow, wide = (bias_of(Sandwich(), distance.to(dtype), 8) for dtype in (torch.float32, torch.float64))
        torch.testing.assert_close(narrow.double(), wide, rtol=2e-6, atol=0)


def test_cosines_make_it_fall_as_a_logarithm() -> None:
    bias = bias_of(Sandwich(), fp64([8, 64, 512, 4096]), 8)[0]
    steps = bias.diff()
    assert (steps < 0).all()
    assert steps.min() / steps.max() < 1.5, "each factor of 8 takes off about as much"


def test_it_turns_back_where_slow_cosines_do() -> None:
    bias = bias_of(Sandwich(), torch.arange(131_072).double(), 8)[0]
    assert (bias.diff() > 0).any()
    assert bias.argmax() == 0


def test_larger_bases_reach_farther() -> None:
    short, long = (bias_of(Sandwich(base=base), fp64([20_000.0]), 8)[0] for base in (10_000, 500_000))
    assert long > short
