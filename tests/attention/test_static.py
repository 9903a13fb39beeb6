"""Static windows are those that queries, keys and bias of the call allow."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.static import StaticWindows
from megatron_mep.attention.windows import kept_pairs, score_bound, static_windows
from megatron_mep.attention.work import Work
from tests.attention.oracle import SCALE, Shape, random_inputs

EPSILON = 1e-3
SLOPES = torch.tensor([2.0, 1.0, 0.5, 0.001])


class Kernel:
    """Records how it is called."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, **options: Any) -> Tensor:
        assert key.shape == value.shape
        assert bias.shape == (4, 105)
        self.options = options
        return query


def given() -> tuple[Tensor, ...]:
    query, key, value, *_ = random_inputs(Shape(2, 4, 2, 60, 100))
    return query, key, value, -SLOPES[:, None] * torch.arange(105.0)


def test_nothing_is_dropped_unasked():
    kernel = Kernel()
    StaticWindows(kernel, 0.0, on_host=False)(*given(), scale=SCALE)
    assert kernel.options == {"scale": SCALE}


@pytest.mark.parametrize("on_host", [False, True])
def test_windows_follow_queries_keys_and_bias(on_host: bool):
    kernel, work = Kernel(), Work()
    query, key, value, bias = given()
    StaticWindows(kernel, EPSILON, on_host=on_host)(query, key, value, bias, scale=SCALE, work=work)
    expected = static_windows(bias[:, :100], score_bound(query, key, SCALE), EPSILON)
    assert 1 < expected[0] < expected[2] < expected[3] == 100
    windows = kernel.options["windows"]
    assert windows == tuple(expected.tolist()) if on_host else torch.equal(windows, expected)
    assert (float(work.kept_pairs), work.dropped) == (2 * kept_pairs(expected, 60, 100).sum(), EPSILON)


def test_a_bound_that_is_known_takes_the_place_of_lengths():
    kernel = Kernel()
    query, key, value, bias = given()
    StaticWindows(kernel, EPSILON, on_host=True)(9 * query, key, value, bias, scale=SCALE, bound=torch.tensor(2.0))
    expected = static_windows(bias[:, :100], torch.full((4,), 2.0), EPSILON)
    assert kernel.options["windows"] == tuple(expected.tolist())
