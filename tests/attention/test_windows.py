"""Windows against sums written out, and against attention that keeps all keys."""

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.windows import kept_pairs, log_heads, log_tails, score_bound, static_windows
from tests.attention.oracle import SCALE

EPSILON = 1e-3
LENGTH = 120
DISTANCE = torch.arange(LENGTH, dtype=torch.float64)
LINEAR = -torch.tensor([0.5, 0.2, 0.05])[:, None] * DISTANCE
GAUSSIAN = -(torch.tensor([0.3, 0.1, 0.03])[:, None] * DISTANCE).square()
CUT = LINEAR.masked_fill(DISTANCE.ge(torch.tensor([3, 40, 200])[:, None]), -torch.inf)

biases = pytest.mark.parametrize("bias", [LINEAR, GAUSSIAN, CUT], ids=["linear", "gaussian", "cut"])


def dropped_by(bias: Tensor, window: int, bound: float) -> Tensor:
    """What rows drop at most of their softmax beyond a window: the most over all lengths of a row, `[H]`."""
    kernel = bias.exp()
    kept, dropped = kernel[:, :window].sum(1), kernel[:, window:].sum(1)
    return torch.tensor(2 * bound, dtype=torch.float64).exp() * dropped / kept


@biases
def test_tails_and_heads_are_sums_of_the_kernel(bias):
    kernel = bias.exp()
    for distance in (0, 1, 7, LENGTH):
        torch.testing.assert_close(log_tails(bias)[:, distance].exp(), kernel[:, distance:].sum(1), rtol=1e-12, atol=0)
        torch.testing.assert_close(log_heads(bias)[:, distance].exp(), kernel[:, :distance].sum(1), rtol=1e-12, atol=0)


def test_tails_do_not_underflow():
    assert log_tails(-1000.0 * torch.arange(5.0)[None])[0, :5].tolist() == [0, -1000, -2000, -3000, -4000]


@biases
@pytest.mark.parametrize("bound", [0.0, 2.0])
def test_windows_are_the_smallest_that_hold(bias, bound):
    windows = static_windows(bias, torch.full((3,), bound), EPSILON)
    for head, window in enumerate(windows.tolist()):
        assert dropped_by(bias, window, bound)[head] <= EPSILON * (1 + 1e-12)
        assert window == 1 or dropped_by(bias, window - 1, bound)[head] > EPSILON


@biases
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_no_row_drops_more_than_promised(bias, factor):
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, LENGTH, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    # the worst case that the bound allows for: what is far is sought, what is near is shunned
    key[0, :, :60] = factor * query[0, :, -1:]
    key[0, :, 60:] = -factor * query[0, :, -1:]
    windows = static_windows(bias, score_bound(query, key, SCALE), EPSILON)
    distance = DISTANCE[:, None] - DISTANCE
    scores = SCALE * query @ key.mT + bias[:, distance.clamp(min=0).long()]
    weights = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)
    assert (weights * (distance >= windows[:, None, None])).sum(-1).max() <= EPSILON


def test_the_bound_is_over_all_samples_and_the_keys_of_the_group():
    query, key = torch.zeros(2, 4, 3, 2), torch.zeros(2, 2, 5, 2)
    query[0, 0, 0] = torch.tensor([3.0, 4.0])
    query[1, 3, 2] = torch.tensor([0.0, 1.0])
    key[1, 0, 4] = torch.tensor([0.0, 2.0])
    key[0, 1, 0] = torch.tensor([6.0, 8.0])
    for scale in (0.5, -0.5):
        bound = score_bound(query, key, scale)
        assert bound.tolist() == pytest.approx([5.0, 0.0, 0.0, 5.0], rel=1e-4)
        assert bool((bound >= torch.tensor([5.0, 0.0, 0.0, 5.0])).all())


def test_a_bias_without_a_tail_keeps_everything():
    logarithmic = -torch.log1p(DISTANCE)[None]
    rising = 0.1 * DISTANCE[None]
    none = torch.zeros(1, LENGTH)
    for bias in (logarithmic, rising, none):
        assert static_windows(bias, torch.zeros(1), EPSILON).tolist() == [LENGTH]


def test_what_is_no_number_proves_nothing():
    assert static_windows(LINEAR, torch.tensor([torch.nan, 0.0, torch.inf]), EPSILON).tolist()[::2] == [LENGTH, LENGTH]
    broken = LINEAR.clone()
    broken[0, 100] = torch.nan
    assert static_windows(broken, torch.zeros(3), EPSILON)[0] == LENGTH


def test_epsilon_zero_drops_what_the_bias_excludes():
    assert static_windows(CUT, torch.full((3,), 9.0), 0.0).tolist() == [3, 40, LENGTH]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (4, 9), (9, 9)])
def test_kept_pairs_are_those_inside_the_windows(queries, keys):
    windows = torch.tensor([1, 2, 5, 8, 9])
    distance = torch.arange(keys)[keys - queries :, None] - torch.arange(keys)
    inside = [int(((distance >= 0) & (distance < window)).sum()) for window in windows]
    assert kept_pairs(windows, queries, keys).tolist() == inside
