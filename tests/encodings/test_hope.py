"""HoPE's frequencies: RoPE's, as far as training sees a whole period of them."""

import math

import pytest
import torch

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.hope import Hope
from megatron_mep.encodings.rope import Rope
from tests.encodings.oracle import fp64
from tests.support.tolerance import assert_exact_equal

SIZES = LayerSizes(num_heads=4, hidden_size=64, head_size=16)


@pytest.mark.parametrize(("train_length", "turning"), [(512, 16), (1024, 18), (8192, 25), (62_832, 32), (7, 1)])
def test_a_pair_turns_if_training_sees_it_turn_once_around(train_length: int, turning: int):
    frequencies = [10_000 ** (-2 * m / 64) for m in range(32)]
    expected = [frequency if 2 * math.pi / frequency <= train_length else 0.0 for frequency in frequencies]
    ours = Hope(train_length=train_length).frequencies(64)
    torch.testing.assert_close(ours, fp64(expected), rtol=1e-12, atol=0)
    assert int((ours > 0).sum()) == turning


def test_no_angle_beyond_the_training_length_is_new():
    """Each pair that turns has met a whole turn within it."""
    frequency = Hope(train_length=1024, base=500_000.0).frequencies(64)
    around = frequency * 1024 / (2 * math.pi)
    assert ((around == 0) | (around >= 1)).all()
    assert 0 < int((around == 0).sum()) < 32


def test_it_is_rope_where_every_period_fits():
    position = fp64([0, 1, 63, 1000, 131_071])
    assert_exact_equal(Hope(train_length=10**6).angles(position, 16), Rope().angles(position, 16))


def test_the_training_length_is_filled_in_unless_stated():
    assert Hope().resolved(1024) == Hope(train_length=1024)
    assert Hope(train_length=512).resolved(1024) == Hope(train_length=512)


@pytest.mark.parametrize("length", [1, 6])
def test_a_length_in_which_nothing_turns_is_told(length: int):
    (mistake,) = Hope().resolved(length).mistakes(SIZES)
    assert (mistake.key, mistake.value) == ("train_length", length)
    assert not Hope(train_length=7).mistakes(SIZES)
    assert not Hope().mistakes(SIZES), "it is not known yet"
