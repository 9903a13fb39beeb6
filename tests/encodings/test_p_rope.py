"""p-RoPE's frequencies, between those of RoPE and none."""

import pytest
import torch
from pydantic import ValidationError

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.p_rope import PRope
from megatron_mep.encodings.rope import Rope
from tests.encodings.oracle import fp64
from tests.support.tolerance import assert_exact_equal

POSITIONS = fp64([0, 1, 63, 1000, 131_071])


@pytest.mark.parametrize(
    ("fraction", "head_size", "turning"), [(0.75, 16, 6), (0.5, 16, 4), (0.7, 16, 5), (0.29, 200, 29), (0.1, 20, 1)]
)
def test_the_fastest_pairs_keep_the_frequencies_of_the_whole_head(fraction: float, head_size: int, turning: int):
    expected = [10_000 ** (-2 * m / head_size) if m < turning else 0.0 for m in range(head_size // 2)]
    torch.testing.assert_close(PRope(fraction=fraction).frequencies(head_size), fp64(expected), rtol=1e-12, atol=0)


def test_the_default_is_three_quarters():
    assert PRope().turning_pairs(64) == 24


def test_one_is_rope_and_zero_is_nope():
    assert_exact_equal(PRope(fraction=1.0).angles(POSITIONS, 16), Rope().angles(POSITIONS, 16))
    heads = torch.randn(5, 2, 3, 16, generator=torch.Generator().manual_seed(0))
    assert_exact_equal(PRope(fraction=0.0).turned(heads, POSITIONS), heads)


def test_it_is_not_rope_with_a_fraction():
    ours, other = (kind(fraction=0.5).frequencies(16) for kind in (PRope, Rope))
    assert_exact_equal(ours == 0, other == 0)
    assert ours[1] > other[1]


def test_every_whole_number_of_pairs_can_be_stated():
    for pairs in range(1, 130):
        for turning in range(pairs + 1):
            assert PRope(fraction=turning / pairs).turning_pairs(2 * pairs) == turning


def test_a_fraction_of_no_pair_is_told_with_a_remedy():
    sizes = LayerSizes(num_heads=4, hidden_size=28, head_size=7)
    (mistake,) = PRope(fraction=0.3).mistakes(sizes)
    assert (mistake.key, mistake.value, mistake.remedy) == ("fraction", 0.3, "set it to 0.334 or more")
    assert PRope(fraction=0.334).turning_pairs(7) == 1
    assert not PRope(fraction=0.334).mistakes(sizes)
    assert not PRope(fraction=0.0).mistakes(sizes)


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_of_more_than_all_is_refused(fraction: float):
    with pytest.raises(ValidationError):
        PRope(fraction=fraction)
