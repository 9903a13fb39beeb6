"""Causal attention with a bias by distance on a CUDA device, exact, for a bias that is fixed or learns.

Everything is computed twice rather than kept: the forward pass leaves the output and one number a query behind. No
kernel adds atomically, so all gradients, that of the bias too, are the same bits each time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from megatron_mep.attention.triton_kernels.arguments import Rows, heads_of, inputs_of, table_of
from megatron_mep.attention.triton_kernels.backward import key_value_gradients, query_gradient
from megatron_mep.attention.triton_kernels.bias_gradient import bias_gradient
from megatron_mep.attention.triton_kernels.blocks import HEAD_SIZES, Blocks, blocks_of
from megatron_mep.attention.triton_kernels.forward import forward

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def triton_toeplitz_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    *,
    scale: float,
    windows: Tensor | None = None,
    blocks: Blocks | None = None,
) -> Tensor:
    """Causal softmax attention with `bias[h, query position - key position]` added to the scaled scores.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        bias: `[H, N]` by distance, N >= K, fp32. -inf excludes a distance; distance 0 stays finite.
        scale: Factor of the scores, usually D ** -0.5.
        windows: `[H]`, how many distances each head keeps, at least 1; None keeps all.
        blocks: What a program works on; None takes what suits the device.

    Returns:
        `[B, H, Q, D]`, in memory `[Q, B, H, D]`.
    """
    num_heads, num_queries, num_keys = query.size(1), query.size(2), key.size(2)
    assert query.dtype == key.dtype == value.dtype, "query, key and value are of one type"
    assert query.dtype in DTYPES, f"{query.dtype} is none of {DTYPES}"
    assert query.size(3) in HEAD_SIZES, f"heads of size {query.size(3)}, and none of {', '.join(map(str, HEAD_SIZES))}"
    assert num_heads % key.size(1) == 0, f"{num_heads} heads do not split over {key.size(1)} groups"
    assert num_queries <= num_keys, f"{num_queries} queries cannot be the last of {num_keys} positions"
    assert bias.size(0) == num_heads, f"bias of {bias.size(0)} heads for {num_heads}"
    assert bias.size(1) >= num_keys, f"bias ends at distance {bias.size(1) - 1}, before {num_keys} positions"
    assert bias.dtype == torch.float32, f"a bias is fp32, not {bias.dtype}"
    if windows is None:
        windows = torch.full((num_heads,), num_keys, dtype=torch.int32, device=query.device)
    assert windows.shape == (num_heads,), f"{windows.numel()} windows for {num_heads} heads"
    if blocks is None:
        capability = torch.cuda.get_device_capability(query.device)
        blocks = blocks_of(capability, query.size(3), query.element_size())
    query, key, value = (_with_dense_rows(tensor) for tensor in (query, key, value))
    output: Tensor = _TritonToeplitzAttention.apply(query, key, value, bias, windows, scale, blocks)
    return output


class _TritonToeplitzAttention(torch.autograd.Function):
    """Both passes by kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        windows: Tensor,
        scale: float,
        blocks: Blocks,
    ) -> Tensor:
        num_keys = key.size(2)
        windows = windows.to(torch.int32).clamp(max=num_keys)
        tensors = query, key, value, table_of(bias, windows, num_keys), windows
        output, logsumexp = forward(inputs_of(*tensors, scale), blocks.forward)
        ctx.save_for_backward(*tensors, output, logsumexp)
        ctx.scale, ctx.blocks, ctx.num_distances = scale, blocks, bias.size(1)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, table, windows, output, logsumexp = ctx.saved_tensors
        inputs, blocks = inputs_of(query, key, value, table, windows, ctx.scale), ctx.blocks
        rows = Rows(heads_of(_with_dense_rows(grad_output)), logsumexp, torch.empty_like(logsumexp))
        grad_query = query_gradient(inputs, rows, output, blocks.query_gradient)
        grad_key, grad_value = key_value_gradients(inputs, rows, blocks.key_value_gradient)
        grad_bias = None
        if ctx.needs_input_grad[3]:
            grad_bias = bias_gradient(inputs, rows, blocks.bias_gradient)
            grad_bias = functional.pad(grad_bias, (0, ctx.num_distances - grad_bias.size(1)))
        return grad_query, grad_key, grad_value, grad_bias, None, None, None


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied only where a kernel could not read it: where its last dimension is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
