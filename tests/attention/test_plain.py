"""Attention without a bias, against one query at a time."""

from functools import partial

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.plain import plain_attention
from megatron_mep.attention.reference import reference_attention
from tests.attention.oracle import (
    SCALE,
    Inputs,
    LargestStorage,
    Shape,
    attend_by_query,
    output_and_gradients,
    random_inputs,
)
from tests.support.tolerance import assert_exact_equal, assert_within_budget


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return plain_attention(query, key, value, scale=SCALE, num_rows=64)


def attend_densely(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return reference_attention(query, key, value, None, scale=SCALE)


def unbiased_inputs(shape: Shape, dtype: torch.dtype = torch.float32) -> Inputs:
    inputs = random_inputs(shape, dtype, learned=False)
    return inputs._replace(bias=torch.zeros_like(inputs.bias))


def assert_correct(inputs: Inputs) -> None:
    actual, plain = (output_and_gradients(function, inputs) for function in (attend, attend_densely))
    exact = output_and_gradients(attend_by_query, inputs.double())
    for name in exact:
        assert_within_budget(actual[name], plain[name], exact[name], name)


@pytest.mark.parametrize(("queries", "keys"), [(2, 2), (63, 63), (70, 70), (1, 70), (2, 70), (63, 70), (69, 70)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_matches_one_query_at_a_time(queries, keys, groups):
    assert_correct(unbiased_inputs(Shape(2, 4, groups, queries, keys)))


def test_one_position_sees_itself():
    query, key, value, bias, _ = unbiased_inputs(Shape(2, 4, 2, 1, 1))
    assert_exact_equal(attend(query, key, value, bias), value.repeat_interleave(2, dim=1))


def test_bf16_beyond_256_positions():
    assert_correct(unbiased_inputs(Shape(1, 2, 1, 300, 300), torch.bfloat16))


def test_views_by_position_give_the_same():
    inputs = unbiased_inputs(Shape(2, 4, 2, 70, 130))
    by_position = [part.detach().permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for part in inputs[:3]]
    assert_correct(Inputs(*(view.requires_grad_() for view in by_position), *inputs[3:]))


@pytest.mark.parametrize("queries", [1, 100])
def test_keys_are_not_repeated_for_the_heads_of_a_group(queries):
    inputs = unbiased_inputs(Shape(1, 16, 1, queries, 4096))
    with LargestStorage() as largest, torch.no_grad():
        attend(*inputs[:4])
    assert largest.numel < 16 * inputs.key.numel() / 2


def test_masks_are_of_one_chunk():
    inputs = unbiased_inputs(Shape(1, 1, 1, 1000, 1024))
    with LargestStorage() as largest, torch.no_grad():
        attend(*inputs[:4])
    assert largest.numel <= 64 * 1024


def test_dropout_drops_weights():
    query, key, value, *_ = unbiased_inputs(Shape(1, 2, 2, 50, 50))
    torch.manual_seed(0)
    attend_dropping = partial(plain_attention, query, key, torch.ones_like(value), scale=SCALE)
    assert (attend_dropping(dropout=0.5) - 1).abs().max() > 0.1
    torch.testing.assert_close(attend_dropping(dropout=0.0), torch.ones_like(query))


def test_bias_is_refused():
    query, key, value, bias, _ = random_inputs(Shape(1, 2, 2, 5, 5))
    with pytest.raises(AssertionError, match="adds no bias"):
        plain_attention(query, key, value, bias, scale=SCALE)


def test_more_queries_than_keys_are_refused():
    query, key, value, *_ = random_inputs(Shape(1, 2, 2, 6, 5))
    with pytest.raises(AssertionError, match="6 queries cannot be the last of 5 positions"):
        plain_attention(query, key, value, scale=SCALE)


@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (1, 70), (63, 70)])
@pytest.mark.parametrize("groups", [1, 4])
def test_values_wider_than_keys_are_attended_part_by_part(queries, keys, groups):
    one, two = (unbiased_inputs(Shape(2, 4, groups, queries, keys)) for _ in range(2))
    two = two._replace(query=one.query, key=one.key, value=2 * one.value.flip(2).detach())
    wide = attend(one.query, one.key, torch.cat((one.value, two.value), dim=-1), one.bias)
    for part, inputs in zip(wide.chunk(2, dim=-1), (one, two), strict=True):
        exact = attend_by_query(*inputs.double()[:4])
        assert_within_budget(part, attend_densely(*inputs[:4]), exact)


def test_values_wider_than_keys_take_no_more_memory_than_they_hold():
    query, key, value, bias, _ = unbiased_inputs(Shape(1, 2, 2, 1024, 1024))
    with LargestStorage() as largest:
        attend(query, key, torch.cat((value, value), dim=-1), bias).sum().backward()
    assert largest.numel <= 2 * value.numel()
