"""The receptive field of a functional whose window is known."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from megatron_mep.analysis.receptive_field import cumulative_shares, field_of
from tests.analysis.toy import windowed


def norms_of(weights: list[float], length: int) -> NDArray[np.float64]:
    observe = windowed(torch.tensor(weights, dtype=torch.float64))
    return observe(torch.zeros(2, length + 1, dtype=torch.int64), lambda *_: None).numpy()


def test_the_gradient_is_zero_beyond_the_window():
    norms = norms_of([1.0] * 5, 20)
    assert (norms[:, :15] == 0).all()
    assert (norms[:, 15:] > 0).all()


@pytest.mark.parametrize("window", [1, 2, 5, 20])
def test_the_field_of_even_weights_is_the_whole_window(window: int):
    cumulative = cumulative_shares(norms_of([1.0] * window, 20))
    expected = [min(distance + 1, window) / window for distance in range(20)]
    np.testing.assert_allclose(cumulative, [expected, expected], rtol=1e-12)
    assert field_of(cumulative, 0.99).tolist() == [window - 1] * 2


def test_the_field_holds_the_share_and_one_token_less_does_not():
    # 8, 4, 2, 1, 1 of 16: half a share at distance 0, then 3/4, 7/8, 15/16, all
    cumulative = cumulative_shares(norms_of([-8.0, 4.0, -2.0, 1.0, 1.0], 9))
    fields = {share: field_of(cumulative, share)[0] for share in (0.49, 0.51, 0.75, 0.76, 0.9, 0.94)}
    assert fields == {0.49: 0, 0.51: 1, 0.75: 1, 0.76: 2, 0.9: 3, 0.94: 4}


def test_a_share_that_rounding_keeps_from_one_is_reached_at_the_end():
    assert field_of(np.array([0.5, 1 - 1e-9]), 1 - 1e-12) == 1


@pytest.mark.parametrize("norms", [[0.0, 0.0], [1.0, np.nan], [np.inf, 1.0]])
def test_a_gradient_without_a_length_has_no_shares(norms: list[float]):
    assert np.isnan(cumulative_shares(np.array([norms]))).any()
