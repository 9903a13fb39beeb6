"""ReRoPE and its leaky form, pair by pair."""

from functools import partial

import pytest
from pydantic import ValidationError

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation.rerope import Rerope
from tests.extrapolation.pairs import LENGTH, assert_scores, expected_scores, scores_of, turned_product
from tests.support.tolerance import assert_exact_equal


@pytest.mark.parametrize("window", [1, 5, 40])
def test_distances_stand_still_beyond_the_window(window):
    rectified = Rerope(window=window).applied(Rope(), train_length=16)
    assert_scores(scores_of(rectified), expected_scores(lambda i, j: min(i - j, window)))


@pytest.mark.parametrize(("window", "step"), [(1, 4.0), (5, 3.0), (5, 1.5), (7, 16.0)])
def test_leaky_distances_grow_by_one_every_step(window, step):
    def leaky(i: int, j: int) -> float:
        distance = i - j
        return distance if distance < window else window + (distance - window) / step

    rectified = Rerope(window=window, step=step).applied(Rope(), train_length=16)
    assert_scores(scores_of(rectified), expected_scores(leaky))


@pytest.mark.parametrize("step", [None, 4.0])
def test_a_window_of_the_whole_length_is_the_rotation_itself(step):
    rectified = Rerope(window=LENGTH, step=step).applied(Rope(base=100.0), train_length=16)
    plain = Rerope(window=10 * LENGTH).applied(Rope(base=100.0), train_length=16)
    assert_exact_equal(scores_of(rectified), scores_of(plain))
    expected = expected_scores(lambda i, j: i - j, partial(turned_product, base=100.0))
    assert_scores(scores_of(rectified), expected)


def test_the_window_is_a_quarter_of_the_training_length():
    default, stated = (trick.applied(Rope(), train_length=24) for trick in (Rerope(), Rerope(window=6)))
    assert_exact_equal(scores_of(default), scores_of(stated))
    assert default.name == "rope + rerope"


def test_it_needs_a_rotation():
    assert Rerope().against(Rope()) is None
    for encoding in (Alibi(), Nope()):
        assert Rerope().against(encoding) == "needs an encoding that turns queries and keys by their positions"


@pytest.mark.parametrize("options", [{"window": 0}, {"step": 1.0}, {"step": 0.5}])
def test_what_makes_no_distance_is_refused(options):
    with pytest.raises(ValidationError):
        Rerope.model_validate(options)
