"""ALiBi, against the paper's loop over queries and keys."""

import math

import torch

from megatron_mep.encodings.alibi import Alibi
from tests.encodings.oracle import attend, bias_of, fp64, scores, values

EXPONENTS = [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]
"""Of two, the slopes of twelve heads."""


def test_bias_is_the_slope_times_the_negative_distance() -> None:
    bias = bias_of(Alibi(), torch.arange(40, dtype=torch.float64), num_heads=12)
    for head, exponent in enumerate(EXPONENTS):
        # slopes are fp32, of which those with a root of two are rounded
        slope = float(torch.tensor(2.0**exponent, dtype=torch.float32))
        for distance in range(40):
            assert math.isclose(bias[head, distance], -slope * distance, rel_tol=1e-15)


def test_it_is_exact_in_fp32_where_slopes_are_powers_of_two() -> None:
    distance = torch.arange(131_072)
    bias = bias_of(Alibi(), distance.float(), num_heads=8)
    for head in range(8):
        assert bias[head].double().equal(-distance.double() / 2 ** (head + 1))


def test_attention_is_that_of_the_published_code_which_adds_the_slope_times_the_key_position() -> None:
    length, head = 11, 2
    score, value = scores(1, length), values(2, length)
    factor = bias_of(Alibi(), torch.arange(length, dtype=torch.float64), num_heads=8)[head].exp().tolist()
    ours, _ = attend(score, value, factor)
    shifted = [[one + 2.0**-3 * key for key, one in enumerate(row)] for row in score]
    published, _ = attend(shifted, value, [1.0] * length)
    torch.testing.assert_close(fp64(ours), fp64(published), rtol=1e-12, atol=0)


def test_distances_may_have_any_shape() -> None:
    query, key = torch.arange(5.0)[:, None], torch.arange(5.0)[None, :]
    bias = bias_of(Alibi(), (query - key).clamp(min=0), num_heads=8)
    assert bias.shape == (8, 5, 5)
    assert bias[2, 4].tolist() == [-0.5, -0.375, -0.25, -0.125, 0.0]
