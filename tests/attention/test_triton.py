"""Triton kernels of toeplitz attention, by the interpreter where there is no GPU: results, and what they read."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from megatron_mep.attention.reference import dense_bias, distances
from tests.attention.oracle import SCALE, Inputs, Shape, attend_by_query, output_and_gradients, random_inputs
from tests.support.tolerance import assert_exact_equal, assert_within_budget

triton = pytest.importorskip("triton")

from triton import language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from megatron_mep.attention import triton_toeplitz  # noqa: E402
from megatron_mep.attention.triton_kernels.blocks import Blocks, Launch, blocks_of  # noqa: E402
from megatron_mep.attention.triton_toeplitz import triton_toeplitz_attention  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK = 16
TOY = Blocks(*[Launch(rows=BLOCK, keys=BLOCK, num_warps=1, num_stages=2)] * 4)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """The interpreter multiplies bf16 matrices as if their bits were whole numbers: it is given fp32 instead."""
    if DEVICE.type == "cuda":
        return
    assert triton.knobs.runtime.interpret, "something imported Triton before it was told to interpret"
    dot = interpreter.InterpreterBuilder.create_dot

    def widened(operand):
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        data = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(data.view(np.float32), tl.float32)

    monkeypatch.setattr(
        interpreter.InterpreterBuilder,
        "create_dot",
        lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest),
    )


def attend(*inputs: Tensor, blocks: Blocks = TOY, window: Tensor | None = None) -> Tensor:
    query, key, value, bias = (tensor.to(DEVICE) for tensor in inputs)
    windows = None if window is None else window.to(DEVICE)
    output = triton_toeplitz_attention(query, key, value, bias, scale=SCALE, windows=windows, blocks=blocks)
    return output.cpu()


def attend_densely(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, window: Tensor | None = None) -> Tensor:
    """Weights come of the logarithm of the softmax's denominator, whose rounding no kernel without them all escapes."""
    group_size, num_keys = query.size(1) // key.size(1), key.size(2)
    key, value = (tensor.repeat_interleave(group_size, dim=1) for tensor in (key, value))
    distance = distances(query.size(2), num_keys)
    dropped = distance < 0
    if window is not None:
        dropped = dropped | (distance >= window[:, None, None])
    scores = SCALE * (query @ key.mT).float() + dense_bias(bias, query.size(2), num_keys)
    scores = scores.masked_fill(dropped, -torch.inf)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp().to(value.dtype) @ value


def assert_correct(inputs: Inputs, window: Tensor | None = None, blocks: Blocks = TOY) -> dict[str, Tensor]:
    actual = output_and_gradients(partial(attend, window=window, blocks=blocks), inputs)
    plain = output_and_gradients(partial(attend_densely, window=window), inputs)
    exact = output_and_gradients(partial(attend_by_query, window=window), inputs.double())
    # the gradient of an fp32 bias, too, comes from products of the inputs' type
    dtype = inputs.query.dtype
    for name in exact:
        assert_within_budget(actual[name].to(dtype), plain[name].to(dtype), exact[name], name)
    return actual


@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_matches_one_query_at_a_time(length):
    assert_correct(random_inputs(Shape(1, 2, 2, length, length, 16)))


def test_one_position_sees_itself():
    inputs = random_inputs(Shape(1, 2, 2, 1, 1, 16))
    results = output_and_gradients(attend, inputs)
    assert_exact_equal(results["output"], inputs.value.detach())
    assert_exact_equal(results["gradient of value"], inputs.grad_output)
    # a product of 16 numbers less the same product summed in another order
    torch.testing.assert_close(results["gradient of query"], torch.zeros_like(inputs.query), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision(dtype):
    assert_correct(random_inputs(Shape(1, 2, 2, 20, 20, 16), dtype))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_share_keys_of_their_group(groups):
    assert_correct(random_inputs(Shape(1, 4, groups, 9, 9, 16)))


def test_samples_add_up_in_the_gradient_of_the_bias():
    assert_correct(random_inputs(Shape(3, 1, 1, 18, 18, 16)))


@pytest.mark.parametrize(("queries", "keys"), [(3, 40), (7, 23), (16, 32), (20, 29)])
def test_queries_are_the_last_positions(queries, keys):
    assert_correct(random_inputs(Shape(1, 2, 2, queries, keys, 16)))


@pytest.mark.parametrize("size", [32, 64])
def test_head_sizes(size):
    assert_correct(random_inputs(Shape(1, 2, 1, 20, 20, size)))


def test_rows_and_keys_of_a_tile_may_differ():
    wide, high = Launch(16, 32, 1, 2), Launch(32, 16, 1, 2)
    inputs = random_inputs(Shape(1, 1, 1, 35, 40, 16))
    assert_correct(inputs, blocks=Blocks(wide, high, wide, Launch(32, 32, 1, 2)))
    assert_correct(inputs, blocks=Blocks(high, wide, high, TOY.bias_gradient))


@pytest.mark.parametrize("window", [[2, 5], [16, 17], [20, 1000]])
def test_windows(window):
    assert_correct(random_inputs(Shape(1, 2, 1, 30, 35, 16)), torch.tensor(window))


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_far_blocks_are_not_read():
    inputs = random_inputs(Shape(1, 1, 1, 64, 64, 16))
    query, grad_output, poison = inputs.query.detach().clone(), inputs.grad_output.clone(), torch.nan
    key, value = inputs.key.detach().clone(), inputs.value.detach().clone()
    key[:, :, :16] = value[:, :, :16] = query[:, :, :16] = grad_output[:, :, :16] = poison
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    results = output_and_gradients(partial(attend, window=torch.tensor([8])), Inputs(*leaves, inputs.bias, grad_output))
    # the blocks of positions 32 .. 63 end 16 short of the poison
    for name in ("output", "gradient of query", "gradient of key", "gradient of value"):
        assert results[name][:, :, 32:].isfinite().all(), name


@pytest.mark.parametrize("excluded", [slice(1, 2), slice(3, 18), slice(16, None)])
def test_distances_at_minus_infinity_are_excluded(excluded):
    inputs = random_inputs(Shape(1, 1, 1, 30, 30, 16))
    bias = inputs.bias.detach().clone()
    bias[:, excluded] = -torch.inf
    gradients = assert_correct(inputs._replace(bias=bias.requires_grad_()))
    assert not gradients["gradient of bias"][:, excluded].any()


def test_distances_beyond_the_keys_get_no_gradient():
    gradient = output_and_gradients(attend, random_inputs(Shape(1, 2, 2, 18, 18, 16)))["gradient of bias"]
    assert gradient.shape == (2, 23)
    assert not gradient[:, 18:].any()


def test_only_a_bias_that_learns_gets_a_gradient(monkeypatch):
    def unasked(*_):
        raise AssertionError("the gradient of a fixed bias was computed")

    monkeypatch.setattr(triton_toeplitz, "bias_gradient", unasked)
    inputs = random_inputs(Shape(1, 1, 1, 18, 18, 16), learned=False)
    assert_correct(inputs)
    with pytest.raises(AssertionError, match="fixed bias was computed"):
        output_and_gradients(attend, inputs._replace(bias=inputs.bias.requires_grad_()))


def test_views_give_the_same_bits():
    inputs = random_inputs(Shape(2, 2, 1, 5, 5, 16))
    fused = torch.cat([part.detach() for part in inputs[:3]], dim=1).permute(2, 0, 1, 3).contiguous()
    views = [part.detach().permute(1, 2, 0, 3).requires_grad_() for part in fused.split([2, 1, 1], dim=2)]
    dims_first = [part.detach().mT.contiguous().mT.requires_grad_() for part in inputs[:3]]
    expected = output_and_gradients(attend, inputs)
    for leaves in (views, dims_first):
        actual = output_and_gradients(attend, Inputs(*leaves, inputs.bias, inputs.grad_output))
        for name in expected:
            assert_exact_equal(actual[name], expected[name], name)


def test_second_derivatives_are_refused():
    inputs = random_inputs(Shape(1, 2, 2, 5, 5, 16))
    (gradient,) = torch.autograd.grad(attend(*inputs[:4]).square().sum(), inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"query": torch.zeros(1, 3, 5, 16)}, "3 heads do not split over 2 groups"),
        ({"query": torch.zeros(1, 4, 6, 16)}, "6 queries cannot be the last of 5 positions"),
        ({"query": torch.zeros(1, 4, 5, 8)}, "heads of size 8, and none of 16, 32, 64, 128"),
        ({"query": torch.zeros(1, 4, 5, 16, dtype=torch.float64)}, "query, key and value are of one type"),
        ({"bias": torch.zeros(2, 5)}, "bias of 2 heads for 4"),
        ({"bias": torch.zeros(4, 4)}, "bias ends at distance 3, before 5 positions"),
        ({"bias": torch.zeros(4, 5, dtype=torch.bfloat16)}, "a bias is fp32, not torch.bfloat16"),
    ],
)
def test_broken_calls_are_told(change, broken):
    inputs = random_inputs(Shape(1, 4, 2, 5, 5, 16))._replace(**change)
    with pytest.raises(AssertionError, match=broken):
        attend(*inputs[:4])


def test_windows_are_one_a_head():
    inputs = random_inputs(Shape(1, 4, 2, 5, 5, 16))
    with pytest.raises(AssertionError, match="3 windows for 4 heads"):
        attend(*inputs[:4], window=torch.ones(3, dtype=torch.int64))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (12, 0)])
@pytest.mark.parametrize("head_size", [16, 32, 64, 128])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_a_block_diagonal_is_made_of_squares(capability, head_size, itemsize):
    launch = blocks_of(capability, head_size, itemsize).bias_gradient
    assert launch.rows == launch.keys
