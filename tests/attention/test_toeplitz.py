"""Attention by distance on a CPU, by torch's kernel and by ours: against one query at a time, and what it may cost."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.attention import toeplitz_backward
from megatron_mep.attention.reference import dense_bias, reference_attention
from megatron_mep.attention.toeplitz import Rows, toeplitz_attention
from tests.attention.oracle import (
    SCALE,
    Inputs,
    LargestStorage,
    Shape,
    attend_by_query,
    compiled_or_skip,
    output_and_gradients,
    random_inputs,
)
from tests.support.tolerance import assert_exact_equal, assert_within_budget

ROWS = 64

both = pytest.mark.parametrize("learned", [True, False], ids=["learned", "fixed"])

by_torch = partial(toeplitz_attention, scale=SCALE, rows=Rows(diagonal=ROWS, block=2 * ROWS, window=ROWS, learned=ROWS))


@pytest.fixture(params=["toeplitz", "compiled"])
def attend(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """Each of the attentions by distance on a CPU."""
    return by_torch if request.param == "toeplitz" else partial(compiled_or_skip(), scale=SCALE)


def attend_densely(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return reference_attention(query, key, value, dense_bias(bias, query.size(2), key.size(2)), scale=SCALE)


def assert_correct(attend: Callable[..., Tensor], inputs: Inputs, **options: Any) -> None:
    actual = output_and_gradients(partial(attend, **options), inputs)
    plain = output_and_gradients(attend_densely, inputs)
    exact = output_and_gradients(attend_by_query, inputs.double())
    for name in exact:
        assert_within_budget(actual[name], plain[name], exact[name], name)


@both
@pytest.mark.parametrize("length", [63, 64, 257, 300])
def test_matches_one_query_at_a_time(attend, length, learned):
    assert_correct(attend, random_inputs(Shape(1, 2, 2, length, length), learned=learned))


@both
def test_one_position_sees_itself(attend, learned):
    inputs = random_inputs(Shape(2, 4, 4, 1, 1), learned=learned)
    results = output_and_gradients(attend, inputs)
    assert_exact_equal(results["output"], inputs.value.detach())
    # the kernel's exp(score - logsumexp) is 1 but for rounding, and leaves as much where the gradient is zero
    torch.testing.assert_close(results["gradient of value"], inputs.grad_output)
    torch.testing.assert_close(results["gradient of query"], torch.zeros_like(inputs.query), rtol=0, atol=1e-6)


@both
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_share_keys_of_their_group(attend, groups, learned):
    assert_correct(attend, random_inputs(Shape(2, 4, groups, 70, 70), learned=learned))


@both
@pytest.mark.parametrize("queries", [1, 63, 69])
@pytest.mark.parametrize("groups", [2, 4])
def test_queries_stand_at_the_end_of_the_keys(attend, queries, groups, learned):
    assert_correct(attend, random_inputs(Shape(2, 4, groups, queries, 70), learned=learned))


@both
def test_bf16_beyond_256_positions(attend, learned):
    assert_correct(attend, random_inputs(Shape(1, 4, 2, 300, 300), torch.bfloat16, learned))


@both
def test_fp64_keeps_its_precision(learned):
    inputs = random_inputs(Shape(1, 2, 1, 70, 75), torch.float64, learned)
    actual, exact = (output_and_gradients(function, inputs) for function in (by_torch, attend_by_query))
    for name in exact:
        torch.testing.assert_close(actual[name], exact[name], rtol=1e-12, atol=1e-13, msg=name)


@both
def test_more_rows_than_queries(learned):
    assert_correct(by_torch, random_inputs(Shape(1, 2, 2, 20, 30), learned=learned), rows=Rows())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_blocks_of_groups_add_up(monkeypatch, groups):
    monkeypatch.setattr(toeplitz_backward, "BLOCK_BYTES_PER_THREAD", 1)
    assert_correct(by_torch, random_inputs(Shape(2, 4, groups, 70, 70)))


def test_only_a_bias_that_learns_gets_a_gradient(attend):
    names = output_and_gradients(attend, random_inputs(Shape(1, 2, 2, 5, 5), learned=False)).keys()
    assert names == {"output", "gradient of query", "gradient of key", "gradient of value"}


@both
@pytest.mark.parametrize("groups", [2, 4])
def test_views_of_a_fused_projection_give_the_same(attend, groups, learned):
    inputs = random_inputs(Shape(2, 4, groups, 70, 70), learned=learned)
    views = [split.detach().permute(1, 2, 0, 3).requires_grad_() for split in fused_projection(inputs)]
    assert not any(view.is_contiguous() for view in views)
    assert_correct(attend, inputs._replace(query=views[0], key=views[1], value=views[2]))


def fused_projection(inputs: Inputs) -> list[Tensor]:
    """`[S, B, heads, D]` of query, key and value as parts of one tensor `[S, B, H + 2 G, D]`."""
    sizes = [part.size(1) for part in inputs[:3]]
    return list(torch.cat(inputs[:3], dim=1).permute(2, 0, 1, 3).contiguous().split(sizes, dim=2))


def test_head_dimension_need_not_be_contiguous(attend):
    inputs = random_inputs(Shape(1, 2, 2, 70, 70))
    strided = [part.detach().mT.contiguous().mT.requires_grad_() for part in inputs[:3]]
    assert_correct(attend, inputs._replace(query=strided[0], key=strided[1], value=strided[2]))


def test_output_is_laid_out_by_position(attend):
    output = attend(*random_inputs(Shape(2, 4, 2, 70, 70))[:4])
    assert output.permute(2, 0, 1, 3).is_contiguous()


@both
def test_distances_at_minus_infinity_are_out_of_the_window(attend, learned):
    inputs = random_inputs(Shape(1, 4, 2, 200, 200), learned=learned)
    window = torch.tensor([1, 5, 100, 300])
    outside = torch.arange(inputs.bias.size(1)) >= window[:, None]
    bias = inputs.bias.detach().masked_fill(outside, -torch.inf).requires_grad_(learned)
    windowed = inputs._replace(bias=bias)
    actual = output_and_gradients(attend, windowed)
    plain = output_and_gradients(attend_densely, windowed)
    exact = output_and_gradients(partial(attend_by_query, window=window), inputs.double())
    for name in exact:
        assert_within_budget(actual[name], plain[name], exact[name], name)
    if learned:
        assert not actual["gradient of bias"][outside].any()


def test_distances_beyond_the_keys_get_no_gradient(attend):
    inputs = random_inputs(Shape(1, 2, 2, 70, 70))
    gradient = output_and_gradients(attend, inputs)["gradient of bias"]
    assert gradient.shape == (2, 75)
    assert not gradient[:, 70:].any()


@both
@pytest.mark.parametrize("groups", [1, 4])
def test_memory_is_linear_in_the_length(attend, groups, learned):
    heads, length = 4, 1024
    inputs = random_inputs(Shape(1, heads, groups, length, length), learned=learned)
    with LargestStorage() as largest:
        output_and_gradients(attend, inputs)
    assert largest.numel <= groups * ROWS * length


def test_a_block_bounds_the_scores_held_at_once(monkeypatch):
    monkeypatch.setattr(toeplitz_backward, "BLOCK_BYTES_PER_THREAD", 1)
    inputs = random_inputs(Shape(1, 4, 4, 1024, 1024))
    output = by_torch(*inputs[:4])
    with LargestStorage() as largest:
        torch.autograd.grad(output, inputs[:4], inputs.grad_output)
    assert largest.numel <= ROWS * 1024


def test_keys_are_not_repeated_for_the_heads_of_a_group(attend):
    inputs = random_inputs(Shape(1, 16, 1, 1, 2048))
    with LargestStorage() as largest, torch.no_grad():
        attend(*inputs[:4])
    assert largest.numel < 16 * inputs.key.numel() / 2


def test_mask_requires_no_gradient(monkeypatch):
    masks = []
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def recording(*args, **options):
        masks.append(options["attn_mask"])
        return flash(*args, **options)

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", recording)
    output_and_gradients(by_torch, random_inputs(Shape(1, 2, 2, 70, 70)))
    assert len(masks) == 2
    assert not any(mask.requires_grad for mask in masks)


def test_second_derivatives_are_refused(attend):
    inputs = random_inputs(Shape(1, 2, 2, 5, 5))
    (gradient,) = torch.autograd.grad(attend(*inputs[:4]).square().sum(), inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"query": torch.zeros(1, 4, 5, 8, device="meta")}, "computes on a CPU, not on meta"),
        ({"query": torch.zeros(1, 3, 5, 8)}, "3 heads do not split over 2 groups"),
        ({"query": torch.zeros(1, 4, 6, 8)}, "6 queries cannot be the last of 5 positions"),
        ({"bias": torch.zeros(2, 5)}, "bias of 2 heads for 4"),
        ({"bias": torch.zeros(4, 4)}, "bias ends at distance 3, before 5 positions"),
        ({"bias": torch.zeros(4, 5, dtype=torch.bfloat16)}, "fp32 or wider, not torch.bfloat16"),
    ],
)
def test_broken_calls_are_told(attend, change, broken):
    inputs = random_inputs(Shape(1, 4, 2, 5, 5))._replace(**change)
    with pytest.raises(AssertionError, match=broken):
        attend(*inputs[:4])


@pytest.mark.parametrize(
    ("operation", "schema"),
    [
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, "
            "float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) "
            "-> (Tensor output, Tensor logsumexp)",
        ),
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, "
            "Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
            "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
        ),
        (
            "_softmax_backward_data.out",
            "aten::_softmax_backward_data.out(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype, "
            "*, Tensor(a!) grad_input) -> Tensor(a!)",
        ),
    ],
)
def test_private_operations_are_those_of_the_pinned_torch(operation, schema):
    packet, _, overload = operation.partition(".")
    assert str(getattr(getattr(torch.ops.aten, packet), overload or "default")._schema) == schema
