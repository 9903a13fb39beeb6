"""Intervals by bootstrap: as wide as the theory of means says, the same at every call, and one draw for all seeds."""

import numpy as np
import pytest

from megatron_mep.evaluation import bootstrap
from megatron_mep.evaluation.bootstrap import interval, resampled_means


def test_the_interval_of_many_documents_is_that_of_a_normal_mean() -> None:
    draw = np.random.default_rng(3)
    tokens = np.full(400, 10)
    sums = draw.normal(20, 4, (1, 400))
    low, high = interval(sums, tokens, 0.95)
    mean, error = sums.mean() / 10, sums.std() / 10 / np.sqrt(400)
    assert (low, high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.15 * error)
    assert interval(sums, tokens, 0.95) == (low, high)


def test_long_documents_count_by_their_tokens() -> None:
    tokens = np.array([1, 1, 98])
    sums = np.array([[5.0, 5.0, 98.0]])
    means = resampled_means(sums, tokens)
    possible = {(5 * short + 98 * long) / (short + 98 * long) for short in range(4) for long in (3 - short,)}
    assert {round(mean, 9) for mean in means} == {round(mean, 9) for mean in possible}


def test_all_seeds_have_the_same_documents_and_are_drawn_themselves() -> None:
    tokens = np.full(50, 2)
    documents = np.random.default_rng(1).normal(0, 1, 50)
    opposite = np.stack([documents, -documents])
    means = resampled_means(opposite, tokens)
    # both seeds once: their documents cancel
    assert np.mean(np.abs(means) < 1e-12) == pytest.approx(0.5, abs=0.05)


def test_memory_is_bounded_whatever_the_number_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "CELLS_AT_ONCE", 20)
    sums, tokens = np.arange(12.0)[None], np.ones(12, dtype=int)
    assert resampled_means(sums, tokens, 7).shape == (7,)
    assert np.isfinite(resampled_means(sums, tokens, 7)).all()
