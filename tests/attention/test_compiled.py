"""Our compiled kernel: what it adds up in which order, and what becomes of keys that it must not read."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.compiled import block_rows, forward_pass
from megatron_mep.attention.reference import dense_bias, reference_attention
from megatron_mep.attention.work import Work
from tests.attention.oracle import (
    SCALE,
    Inputs,
    Shape,
    attend_by_query,
    compiled_or_skip,
    output_and_gradients,
    random_inputs,
)
from tests.support.tolerance import assert_exact_equal, assert_within_budget

both = pytest.mark.parametrize("learned", [True, False], ids=["learned", "fixed"])


def attend(*inputs: Tensor, epsilon: float = 0.0, work: Work | None = None) -> Tensor:
    return compiled_or_skip()(*inputs, scale=SCALE, epsilon=epsilon, work=work)


def attend_densely(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return reference_attention(query, key, value, dense_bias(bias, query.size(2), key.size(2)), scale=SCALE)


def assert_correct(inputs: Inputs, epsilon: float = 0.0) -> None:
    actual = output_and_gradients(partial(attend, epsilon=epsilon), inputs)
    plain = output_and_gradients(attend_densely, inputs)
    exact = output_and_gradients(attend_densely, inputs.double())
    for name in exact:
        assert_within_budget(actual[name], plain[name], exact[name], name)


def with_a_sink(inputs: Inputs) -> Inputs:
    """The first key is longer than all others, and the bias steep: what is between is left out."""
    with torch.no_grad():
        inputs.key[:, :, 0] *= 20
        inputs.bias.copy_(-torch.linspace(0.5, 1, inputs.bias.size(0))[:, None] * torch.arange(inputs.bias.size(1)))
    return inputs


@both
@pytest.mark.parametrize("head_size", [8, 16, 24, 40, 64, 136, 256])
def test_head_sizes(head_size, learned):
    # of the largest, 64 keys make a part, so that parts follow each other
    inputs = random_inputs(Shape(2, 2, 1, 150, 201, head_size), learned=learned)
    with torch.no_grad():
        inputs.query.mul_(head_size**-0.5)
    assert_correct(inputs)


@both
@pytest.mark.parametrize("length", [95, 96, 97, 127, 129, 191, 193])
def test_lengths_around_the_sizes_of_blocks(length, learned):
    assert_correct(random_inputs(Shape(1, 2, 2, length, length), learned=learned))


@both
@pytest.mark.parametrize("groups", [1, 4])
def test_parts_between_a_sink_and_the_nearest_keys_are_left_out(groups, learned):
    inputs = with_a_sink(random_inputs(Shape(2, 4, groups, 500, 530, 256), learned=learned))
    with torch.no_grad():
        inputs.query.mul_(0.05)
    passed = forward_pass(*(tensor.detach() for tensor in inputs[:4]), scale=SCALE, epsilon=1e-9)
    assert passed.num_sinks == 32
    assert passed.first[..., -1].min() > 2 * 64, "whole parts lie between"
    assert_correct(inputs, epsilon=1e-9)


@both
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_every_number_of_threads_gives_the_same(monkeypatch, epsilon, learned):
    inputs = with_a_sink(random_inputs(Shape(2, 4, 2, 500, 530, 256), learned=learned))
    results = []
    for num_threads in (1, 2, 5, 1000):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=num_threads: count)
        results.append(output_and_gradients(partial(attend, epsilon=epsilon), inputs))
    for (name, expected), other in itertools.product(results[0].items(), results[1:]):
        assert_exact_equal(other[name], expected, name)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_blocks_that_are_wholly_excluded_weigh_nothing(epsilon):
    inputs = random_inputs(Shape(1, 2, 2, 500, 500))
    excluded = torch.zeros_like(inputs.bias, dtype=torch.bool)
    excluded[:, 50:250] = True
    excluded[1, 350:] = True
    bias = (0.1 * inputs.bias.detach()).masked_fill(excluded, -torch.inf).requires_grad_()
    assert_correct(inputs._replace(bias=bias), epsilon)
    gradient = output_and_gradients(partial(attend, epsilon=epsilon), inputs._replace(bias=bias))["gradient of bias"]
    assert not gradient[excluded].any()
    assert gradient[0, 250:].any()


def test_queries_before_a_key_that_is_no_number_do_not_see_it():
    inputs = random_inputs(Shape(1, 1, 1, 400, 400))
    exact = attend_by_query(*inputs.double()[:4])
    with torch.no_grad():
        inputs.key[:, :, 250] = torch.nan
    output = attend(*inputs[:4])
    assert output[:, :, 250:].isnan().all()
    start = 250 // block_rows() * block_rows()
    torch.testing.assert_close(output[:, :, :start].double(), exact[:, :, :start], rtol=1e-5, atol=1e-6)


def test_a_tensor_may_be_used_twice():
    inputs = random_inputs(Shape(1, 2, 2, 100, 100))
    assert_correct(inputs._replace(value=inputs.key, query=inputs.query.detach()))


def test_samples_walk_as_far_as_each_must():
    inputs = random_inputs(Shape(2, 2, 2, 600, 600))
    with torch.no_grad():
        inputs.bias.copy_(-0.1 * torch.arange(605))
        inputs.key[1].mul_(5)
    first = forward_pass(*(tensor.detach() for tensor in inputs[:4]), scale=SCALE, epsilon=1e-6).first
    assert (first[0, :, -1] > first[1, :, -1]).all()


def test_heads_that_are_alike_walk_alike():
    # of so many that an entry too few in each head's vectors would lead out of them
    inputs = random_inputs(Shape(1, 160, 1, 300, 300))
    query, bias = inputs.query.detach()[:, :1].expand(-1, 160, -1, -1), inputs.bias.detach()[80:81].expand(160, -1)
    compiled_or_skip()
    keys = inputs.key.detach(), inputs.value.detach()
    first = forward_pass(query, *keys, bias, scale=SCALE, epsilon=1e-6).first
    assert_exact_equal(first, first[:, :1].expand_as(first))
    assert first[0, 0, -1] > 0


@pytest.mark.parametrize("bits", [128, 384])
def test_biases_too_large_for_a_power_of_two(bits):
    # a block that is not full has columns without a query: what they weigh must be a number
    inputs = random_inputs(Shape(1, 2, 2, 100, 100))
    with torch.no_grad():
        inputs.bias.mul_(0.05).add_(bits * math.log(2))
    results = output_and_gradients(attend, inputs)
    assert all(result.isfinite().all() for result in results.values())


def test_keys_that_overlap_in_memory():
    # fewer than numbers in a head, so that what is like them has other strides
    inputs = random_inputs(Shape(1, 2, 1, 40, 40, 64))
    key, value = (part.detach().flatten()[:103].unfold(0, 64, 1)[None, None].requires_grad_() for part in inputs[1:3])
    assert key.size(2) == 40
    assert_correct(inputs._replace(key=key, value=value))


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
@pytest.mark.parametrize("shape", [Shape(0, 2, 1, 5, 5), Shape(2, 2, 1, 0, 5), Shape(1, 1, 1, 0, 0)], ids=str)
def test_nothing_makes_nothing(shape, epsilon):
    inputs, work = random_inputs(shape), Work()
    results = output_and_gradients(partial(attend, epsilon=epsilon, work=work), inputs)
    assert results.pop("output").shape == inputs.query.shape
    assert not any(gradient.any() for gradient in results.values())
    assert work.kept == 1


def test_the_gradient_of_a_wide_bias_is_as_wide():
    inputs = random_inputs(Shape(1, 2, 2, 60, 60))
    bias = inputs.bias.detach().double().requires_grad_()
    gradient = output_and_gradients(attend, inputs._replace(bias=bias))["gradient of bias"]
    assert gradient.dtype == torch.float64


def test_fp64_and_odd_head_sizes_are_refused():
    with pytest.raises(AssertionError, match=r"computes in fp32, not in torch\.float64"):
        attend(*random_inputs(Shape(1, 1, 1, 3, 3)).double()[:4])
    with pytest.raises(AssertionError, match="no heads of size 12"):
        attend(*random_inputs(Shape(1, 1, 1, 3, 3, 12))[:4])
    with pytest.raises(AssertionError, match="no heads of size 0"):
        attend(*random_inputs(Shape(1, 1, 1, 3, 3, 0))[:4])


def test_it_has_one_derivative():
    inputs = random_inputs(Shape(1, 1, 1, 5, 5))
    loss = attend(*inputs[:4]).square().sum()
    (gradient,) = torch.autograd.grad(loss, inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
