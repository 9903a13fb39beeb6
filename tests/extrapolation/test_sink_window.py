"""The lambda-shaped mask of LM-Infinite, pair by pair."""

import math

import pytest

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation.rerope import Rerope
from megatron_mep.extrapolation.sink_window import SinkWindow
from tests.encodings.examples import Cable, Fire, Segments, Table
from tests.extrapolation.pairs import LENGTH, Seen, assert_scores, expected_scores, product, scores_of
from tests.support.tolerance import assert_exact_equal


def sinks_and_window(window: int, num_sinks: int) -> Seen:
    return lambda i, j: min(i - j, window) if i - j < window or j < num_sinks else None


each = pytest.mark.parametrize(("window", "num_sinks"), [(5, 3), (16, 10), (7, 0), (1, 1)])


@each
def test_sinks_turn_by_the_window(window, num_sinks):
    masked = SinkWindow(window=window, num_sinks=num_sinks).applied(Rope(), train_length=16)
    assert_scores(scores_of(masked), expected_scores(sinks_and_window(window, num_sinks)))


@each
def test_sinks_have_the_bias_of_the_window(window, num_sinks):
    masked = SinkWindow(window=window, num_sinks=num_sinks).applied(Alibi(), train_length=16)
    expected = expected_scores(
        sinks_and_window(window, num_sinks), product, bias=lambda head, distance: -(4.0 ** -(head + 1)) * distance
    )
    assert_scores(scores_of(masked), expected)


@each
def test_without_an_encoding_it_is_a_mask(window, num_sinks):
    masked = SinkWindow(window=window, num_sinks=num_sinks).applied(Nope(), train_length=16)
    assert_scores(scores_of(masked), expected_scores(sinks_and_window(window, num_sinks), product))


def test_a_window_of_the_whole_length_is_the_encoding_itself():
    masked = SinkWindow(window=LENGTH).applied(Rope(), train_length=16)
    assert_scores(scores_of(masked), expected_scores(lambda i, j: i - j))
    assert_exact_equal(scores_of(masked), scores_of(Rerope(window=LENGTH).applied(Rope(), train_length=16)))


def test_it_takes_the_training_length_and_ten_sinks():
    default = SinkWindow().applied(Rope(), train_length=16)
    assert_exact_equal(
        scores_of(default), scores_of(SinkWindow(window=16, num_sinks=10).applied(Rope(), train_length=1))
    )
    seen = scores_of(default)[0, 0, -1] > -math.inf
    assert seen.nonzero().flatten().tolist() == [*range(10), *range(LENGTH - 16, LENGTH)]


def test_it_needs_an_encoding_by_distance():
    for encoding in (Rope(), Alibi(), Nope()):
        assert SinkWindow().against(encoding) is None
    for encoding in (Fire(), Cable(), Segments(), Table()):
        assert "needs an encoding that turns queries and keys" in str(SinkWindow().against(encoding))
