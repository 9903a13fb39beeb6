import math

import pytest

from megatron_mep.training.config import SpikeConfig
from megatron_mep.training.spikes import SpikeWatch


def watch(losses: list[float], **config: float) -> SpikeWatch:
    found = SpikeWatch(SpikeConfig.model_validate({"window": 8, "deviations": 4.0, **config}))
    for loss in losses:
        found.add(loss)
    return found


def test_the_bound_is_the_median_and_its_deviation():
    # median 3, distances 2 1 0 1 2: median 1
    assert watch([5.0, 1.0, 3.0, 2.0, 4.0]).bound == pytest.approx(3 + 4 * 1.4826)


def test_nothing_is_a_spike_before_half_of_the_window_is_there():
    assert watch([1.0, 1.0, 1.0]).bound == math.inf
    assert watch([1.0, 1.0, 1.0, 1.0]).bound < math.inf


def test_losses_that_stand_still_may_vary_a_little():
    assert watch([2.0] * 8).bound == pytest.approx(2.0 + 4 * 0.002)


def test_one_outlier_leaves_the_bound_where_it_was():
    calm = [3.0, 3.1, 2.9, 3.05, 2.95, 3.0, 3.1]
    assert watch([*calm, 1e6]).bound < 2 * watch([*calm, 3.0]).bound


def test_a_rise_that_lasts_is_the_new_level():
    risen = watch([3.0] * 8 + [5.0] * 4)
    assert risen.bound < 10.0
    risen.add(5.0)
    assert risen.bound == pytest.approx(5.0 * 1.004)


def test_only_the_window_is_remembered():
    remembered = watch([float(number) for number in range(20)])
    assert remembered.recent == tuple(float(number) for number in range(12, 20))
    assert SpikeWatch(SpikeConfig(window=8, deviations=4.0), remembered.recent).bound == remembered.bound
