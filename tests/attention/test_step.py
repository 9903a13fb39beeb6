"""The step of a decoding against attention that keeps all keys, and what it remembers."""

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.reach import NUM_SINKS
from megatron_mep.attention.reference import dense_bias, reference_attention
from megatron_mep.attention.step import NUM_NEAR, Decoding, step_attention
from megatron_mep.attention.work import Work
from tests.attention.oracle import SCALE
from tests.support.tolerance import assert_exact_equal, assert_within_budget

EPSILON = 1e-6
SLOPES = torch.tensor([1.0, 0.3, 0.1, 0.02])
LENGTH = 1200

Cached = tuple[Tensor, Tensor, Tensor]


def linear(distance: Tensor) -> Tensor:
    return -SLOPES.to(distance.dtype)[:, None] * distance


def cached(num_keys: int = LENGTH, groups: int = 2, dtype: torch.dtype = torch.float32) -> Cached:
    """A query of four heads, keys and values of two samples."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(2, 4, 1, 8), (2, groups, num_keys, 8), (2, groups, num_keys, 8)]
    query, key, value = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    return query, key, value


def step(inputs: Cached, decoding: Decoding, epsilon: float = EPSILON, work: Work | None = None) -> Tensor:
    decoding.bias(linear, inputs[1].size(2), torch.device("cpu"))
    decoding.note(inputs[1], 1)
    return step_attention(*inputs, scale=SCALE, epsilon=epsilon, decoding=decoding, work=work)


def densely(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    bias = linear(torch.arange(key.size(2), dtype=torch.promote_types(query.dtype, torch.float32)))
    return reference_attention(query, key, value, dense_bias(bias, 1, key.size(2)), scale=SCALE)


def assert_right(inputs: Cached, decoding: Decoding, epsilon: float = 1e-9) -> Work:
    work = Work()
    actual = step(inputs, decoding, epsilon, work)
    exact = densely(*(tensor.double() for tensor in inputs))
    assert_within_budget(actual, densely(*inputs), exact)
    return work


@pytest.mark.parametrize("epsilon", [0.0, 1e-9])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("num_keys", [2, NUM_NEAR + NUM_SINKS, LENGTH])
def test_matches_attention_to_all_keys(num_keys, groups, epsilon):
    assert_right(cached(num_keys, groups), Decoding(), epsilon)


def test_bf16_is_as_close_as_plain_bf16():
    assert_right(cached(dtype=torch.bfloat16), Decoding(), EPSILON)


def test_a_step_reads_what_its_heads_see():
    work = assert_right(cached(), Decoding())
    assert NUM_NEAR / LENGTH < work.kept < 0.6
    assert work.dropped <= 1e-9
    assert work.causal_pairs == 2 * 4 * LENGTH


def test_no_more_is_dropped_than_promised():
    query, key, value = cached()
    # what is far is sought as much as its length allows, what is near is shunned
    key[:, :, :600] = 3 * query[:, 1::2]
    key[:, :, 600:] = -key[:, :, 600:].abs() * query[:, 1::2].sign()
    for size in (1.0, 2.0):
        actual = step((size * query, key, value), Decoding())
        exact = densely(*(tensor.double() for tensor in (size * query, key, value)))
        assert (actual - exact).abs().max() <= 2 * EPSILON * value.abs().max() + 1e-6


def test_steps_follow_each_other():
    query, key, value = cached()
    decoding = Decoding()
    for num_keys in range(LENGTH - 3, LENGTH + 1):
        assert_right((query, key[:, :, :num_keys], value[:, :, :num_keys]), decoding)


def test_a_long_key_that_comes_late_is_heeded():
    query, key, value = cached()
    decoding = Decoding()
    before = assert_right((query, key[:, :, :-1], value[:, :, :-1]), decoding)
    key[:, :, -1] *= 6
    after = assert_right((query, key, value), decoding)
    assert after.kept > before.kept


def test_a_sink_costs_its_own_keys_alone():
    query, key, value = cached()
    before = assert_right((query, key, value), Decoding())
    key[:, :, 0] *= 30
    after = assert_right((query, key, value), Decoding())
    assert before.kept <= after.kept <= before.kept + NUM_SINKS / LENGTH + 1e-3


def test_what_a_jump_leaves_out_is_measured_too():
    query, key, value = cached()
    decoding = Decoding()
    assert_right((query, key[:, :, :700], value[:, :, :700]), decoding)
    key[:, :, 800] *= 20
    expected = assert_right((query, key, value), Decoding())
    assert assert_right((query, key, value), decoding).kept == expected.kept


def test_a_cache_that_is_read_back_and_written_again_is_followed():
    query, key, value = cached()
    decoding = Decoding()
    assert_right((query, key[:, :, :1000], value[:, :, :1000]), decoding)
    # read back to 600, a chunk of 400 with a key that is sought, then a step
    key[:, :, 640] = 30 * query[:, ::2, 0]
    decoding.note(key[:, :, :1000], 400)
    assert_right((query, key[:, :, :1001], value[:, :, :1001]), decoding)
    # read back to before that key
    key[:, :, 640] /= 100
    decoding.note(key[:, :, :620], 20)
    decoding.note(key[:, :, :1000], 380)
    expected = assert_right((query, key[:, :, :1001], value[:, :, :1001]), Decoding())
    assert assert_right((query, key[:, :, :1001], value[:, :, :1001]), decoding).kept == expected.kept


def test_another_cache_of_a_fitting_length_is_told_apart():
    query, key, value = cached()
    decoding = Decoding()
    assert_right((query, key[:, :, :-1], value[:, :, :-1]), decoding)
    other = key.clone()
    other[:, :, 640] = 30 * query[:, ::2, 0]
    assert_right((query, other, value), decoding)
    # a sample that is left, and samples that changed places
    assert_right((query[1:], other[1:], value[1:]), decoding)
    assert_right((query.flip(0), other.flip(0), value.flip(0)), decoding)


@pytest.mark.parametrize("offset", [-10.0, 0.0])
def test_a_part_that_the_bias_excludes_has_no_share(offset):
    query, key, value = cached()
    key[:, :, 3] *= 20
    decoding = Decoding()

    def cut(distance: Tensor) -> Tensor:
        return torch.where(distance < 100, 0 * distance + offset, -torch.inf).expand(4, -1)

    decoding.bias(cut, LENGTH, torch.device("cpu"))
    decoding.note(key, 1)
    actual = step_attention(query, key, value, scale=SCALE, epsilon=EPSILON, decoding=decoding)
    given = [tensor[:, :, -100:].double() if tensor is not query else query.double() for tensor in (query, key, value)]
    plain = reference_attention(query, key[:, :, -100:], value[:, :, -100:], None, scale=SCALE)
    assert_within_budget(actual, plain, reference_attention(*given, None, scale=SCALE))


def test_a_bias_that_is_no_number_proves_nothing():
    query, key, value = cached()
    decoding = Decoding()

    def broken(distance: Tensor) -> Tensor:
        return linear(distance).masked_fill(distance == 900, torch.nan)

    decoding.bias(broken, LENGTH, torch.device("cpu"))
    decoding.note(key, 1)
    output = step_attention(query, key, value, scale=SCALE, epsilon=1e-3, decoding=decoding)
    assert output.isnan().all()


def test_a_negative_scale_keeps_the_bound():
    query, key, value = cached()
    key[:, :, 40:60] = -30 * query[:, ::2]
    decoding = Decoding()
    decoding.bias(linear, LENGTH, torch.device("cpu"))
    decoding.note(key, 1)
    actual = step_attention(query, key, value, scale=-SCALE, epsilon=1e-9, decoding=decoding)
    bias = dense_bias(linear(torch.arange(float(LENGTH))), 1, LENGTH)
    exact = reference_attention(query.double(), key.double(), value.double(), bias.double(), scale=-SCALE)
    assert_within_budget(actual, reference_attention(query, key, value, bias, scale=-SCALE), exact)


def test_keys_that_are_no_numbers_are_not_skipped():
    query, key, value = cached()
    key[:, 0, 50] = torch.nan
    output = step((query, key, value), Decoding())
    assert output[:, :2].isnan().all()
    assert output[:, 2:].isfinite().all()


def test_biases_are_computed_when_the_length_doubles():
    lengths = []

    def recording(distance: Tensor) -> Tensor:
        lengths.append(len(distance))
        return linear(distance)

    decoding = Decoding()
    for num_keys in range(1, 40):
        bias = decoding.bias(recording, num_keys, torch.device("cpu"))
        assert_exact_equal(decoding.row(num_keys), bias[:, :num_keys].flip(1))
    assert lengths == [2, 4, 8, 16, 32, 64]
    decoding.forget()
    decoding.bias(recording, 3, torch.device("cpu"))
    assert lengths[-1] == 4


def test_windows_are_the_smallest_that_the_tails_allow():
    decoding = Decoding()
    bias = decoding.bias(linear, 63, torch.device("cpu")).double()
    for log_tail in (-30.0, -9.0, -2.0, 0.5, 9.0):
        (windows,) = {tuple(decoding.windows(torch.full((2, 4), log_tail)).tolist())}
        for head, window in enumerate(windows):
            assert bias[head, window:].exp().sum() <= 2.718281828459045**log_tail * (1 + 1e-9)
            assert window == 0 or bias[head, window - 1 :].exp().sum() > 2.718281828459045**log_tail * (1 - 1e-9)
