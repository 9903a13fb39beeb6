"""Self-Extend, pair by pair."""

import pytest

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation.rerope import Rerope
from megatron_mep.extrapolation.self_extend import SelfExtend
from tests.extrapolation.pairs import LENGTH, assert_scores, expected_scores, scores_of
from tests.support.tolerance import assert_exact_equal


@pytest.mark.parametrize(("window", "group"), [(4, 2), (5, 3), (7, 4), (1, 8), (12, 5)])
def test_positions_beyond_the_window_are_counted_in_groups(window, group):
    def grouped(i: int, j: int) -> float:
        return i - j if i - j < window else i // group - j // group + window - window // group

    extended = SelfExtend(window=window, group=group).applied(Rope(), train_length=16)
    assert_scores(scores_of(extended), expected_scores(grouped))


def test_groups_of_one_and_a_window_of_the_whole_length_are_the_rotation_itself():
    rotation = Rerope(window=LENGTH).applied(Rope(), train_length=16)
    for window, group in ((5, 1), (LENGTH, 4)):
        extended = SelfExtend(window=window, group=group).applied(Rope(), train_length=16)
        assert_scores(scores_of(extended), expected_scores(lambda i, j: i - j))
        assert_exact_equal(scores_of(extended), scores_of(rotation))


def test_distances_stay_within_training_as_far_as_the_paper_says():
    train_length, window, group = 16, 4, 4
    reach = group * (train_length - window) + window
    far = [(reach - 1) // group - j // group + window - window // group for j in range(reach - window)]
    assert max(far) < train_length
    extended = SelfExtend(group=group).applied(Rope(), train_length)
    stated = SelfExtend(window=window, group=group).applied(Rope(), train_length)
    assert_exact_equal(scores_of(extended, reach), scores_of(stated, reach))


def test_it_needs_a_rotation():
    assert SelfExtend().against(Rope()) is None
    assert SelfExtend().against(Alibi()) == "needs an encoding that turns queries and keys by their positions"
