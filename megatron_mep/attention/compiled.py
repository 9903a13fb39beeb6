"""Causal attention with a bias by distance on a CPU by the kernel of `toeplitz.cpp`, in fp32.

A block of queries of one head walks outwards from its nearest keys by the rule of `reach`, and stops where what is left
can be dropped: the kernel asks after every step, with the logsumexp of all that it has attended to.
"""

import ctypes
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from megatron_mep.attention.hankel import EXCLUDED
from megatron_mep.attention.native import kernel
from megatron_mep.attention.reach import num_sinks, running_max
from megatron_mep.attention.tiles import Tile
from megatron_mep.attention.toeplitz import assert_sound, with_dense_rows
from megatron_mep.attention.windows import log_tails
from megatron_mep.attention.work import Work

MOST_HEAD_SIZE = 256
HEAD_SIZE_STEP = 8
"""Numbers in a vector of the kernel."""


def compiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    *,
    scale: float,
    epsilon: float = 0.0,
    work: Work | None = None,
) -> Tensor:
    """The arguments and result of `toeplitz_attention`, of fp32 or narrower; D is a multiple of 8 up to 256."""
    assert_sound(query, key, bias)
    assert query.dtype.itemsize <= torch.float32.itemsize, f"the kernel computes in fp32, not in {query.dtype}"
    assert serves_head_size(query.size(3)), f"the kernel has no heads of size {query.size(3)}"
    output: Tensor = _CompiledAttention.apply(query, key, value, bias, scale, epsilon, work)
    return output


def serves_head_size(head_size: int) -> bool:
    """Whether the kernel computes heads of that size."""
    return head_size <= MOST_HEAD_SIZE and head_size % HEAD_SIZE_STEP == 0


class _View(ctypes.Structure):
    """A tensor `[B, heads, rows, D]`: where it begins and its strides, in numbers; the last dimension is dense."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("sample", "head", "row")))

    @classmethod
    def of(cls, tensor: Tensor) -> "_View":
        return cls(tensor.data_ptr(), *tensor.stride()[:3])


class _Call(ctypes.Structure):
    """`Call` of the kernel."""

    _fields_ = (
        *((name, _View) for name in ("query", "key", "value", "output")),
        *((f"grad_{name}", _View) for name in ("output", "query", "key", "value")),
        *((name, ctypes.c_void_p) for name in ("logsumexp", "bias", "tails", "longest", "centred", "mean", "dropped")),
        *((name, ctypes.c_void_p) for name in ("grad_bias", "first")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "groups", "queries", "keys", "size")),
        *((name, ctypes.c_int64) for name in ("sinks", "threads")),
        *((name, ctypes.c_double) for name in ("scale", "epsilon", "largest")),
    )


class _CompiledAttention(torch.autograd.Function):
    """Both passes are one call of the kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        scale: float,
        epsilon: float,
        work: Work | None,
    ) -> Tensor:
        num_samples, num_heads, num_queries, head_size = query.shape
        q, k, v = (with_dense_rows(tensor.float()) for tensor in (query, key, value))
        output = q.new_empty(num_queries, num_samples, num_heads, head_size).permute(1, 2, 0, 3)
        logsumexp = q.new_empty(num_samples, num_heads, num_queries)
        biases = _laid_out(bias[:, : key.size(2)])
        num_blocks = -(-num_queries // _library().toeplitz_rows())
        first = torch.empty(num_samples, num_heads, num_blocks, dtype=torch.int64)
        dropped = q.new_empty(first.shape)
        call = _call_of(q, k, v, output, biases, scale)
        call.logsumexp, call.first, call.dropped = (tensor.data_ptr() for tensor in (logsumexp, first, dropped))
        bounds = _Bounds.of(k, bias) if epsilon else None
        if bounds:
            bounds.give_to(call, epsilon)
        _library().toeplitz_forward(ctypes.byref(call))
        if work is not None:
            work.count(_kept_pairs(first - call.sinks, query, key), query.shape, key.size(2), float(dropped.max()))
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, bias, output, logsumexp, biases, first)
        ctx.scale, ctx.sinks = scale, call.sinks
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, output, logsumexp, biases, first = ctx.saved_tensors
        q, k, v, o, grad_o = (with_dense_rows(each.float()) for each in (query, key, value, output, grad_output))
        grads = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        call = _call_of(q, k, v, o, biases, ctx.scale)
        call.sinks, call.logsumexp, call.first = ctx.sinks, logsumexp.data_ptr(), first.data_ptr()
        call.grad_output, call.grad_query, call.grad_key, call.grad_value = map(_View.of, (grad_o, *grads))
        grad_bias = q.new_zeros(q.size(1), k.size(2)) if ctx.needs_input_grad[3] else None
        if grad_bias is not None:
            call.grad_bias = grad_bias.data_ptr()
        _library().toeplitz_backward(ctypes.byref(call))
        if grad_bias is not None:
            grad_bias = functional.pad(grad_bias, (0, bias.size(1) - k.size(2))).to(bias.dtype)
        of_inputs = (grad.to(tensor.dtype) for grad, tensor in zip(grads, (query, key, value), strict=True))
        return *of_inputs, grad_bias, None, None, None


class _Bounds(NamedTuple):
    """What the kernel weighs keys by that it has not read yet."""

    tails: Tensor
    longest: Tensor
    """The length of the longest key before each, sinks aside: `[B, G, K + 1]`."""
    centred: Tensor
    """The same of keys less their mean."""
    mean: Tensor
    num_sinks: int
    largest: float
    """The length of the longest key of all."""

    @classmethod
    def of(cls, key: Tensor, bias: Tensor) -> "_Bounds":
        length, mean = torch.linalg.vector_norm(key, dim=-1), key.mean(2, keepdim=True)
        sinks = num_sinks(length)
        longest, centred = (
            running_max(each, sinks) for each in (length, torch.linalg.vector_norm(key - mean, dim=-1))
        )
        return cls(_laid_out(log_tails(bias[:, : key.size(2)])), longest, centred, mean, sinks, float(length.amax()))

    def give_to(self, call: _Call, epsilon: float) -> None:
        """The call reads their memory."""
        call.tails, call.longest, call.centred, call.mean = (tensor.data_ptr() for tensor in self[:4])
        call.sinks, call.largest, call.epsilon = self.num_sinks, self.largest, epsilon


def _library() -> ctypes.CDLL:
    library = kernel()
    assert not isinstance(library, str), f"there is no kernel: {library}"
    assert library.toeplitz_call_size() == ctypes.sizeof(_Call), "the call is not the one that the kernel reads"
    return library


def _call_of(query: Tensor, key: Tensor, value: Tensor, output: Tensor, biases: Tensor, scale: float) -> _Call:
    """What both passes share."""
    views = {"query": query, "key": key, "value": value, "output": output}
    return _Call(
        **{name: _View.of(tensor) for name, tensor in views.items()},
        bias=biases.data_ptr(),
        batch=query.size(0),
        heads=query.size(1),
        groups=key.size(1),
        queries=query.size(2),
        keys=key.size(2),
        size=query.size(3),
        threads=torch.get_num_threads(),
        scale=scale,
    )


def _kept_pairs(left_out: Tensor, query: Tensor, key: Tensor) -> int:
    """Pairs computed, given how many keys each block `[B, H, blocks]` leaves out."""
    num_samples, num_heads, num_queries, _ = query.shape
    rows = torch.full((left_out.size(2),), _library().toeplitz_rows())
    rows[-1] += num_queries - rows.sum()
    causal = Tile(slice(0, num_queries), slice(0, key.size(2)), key.size(2) - 1).num_pairs
    return num_samples * num_heads * causal - int((left_out * rows).sum())


def _laid_out(by_distance: Tensor) -> Tensor:
    """Biases or tails `[H, n]` as the kernel reads them: logarithms to base 2 in fp32, excluded ones on both sides."""
    pad = _library().toeplitz_pad()
    in_base_2 = (by_distance.double() / math.log(2)).float().clamp(min=EXCLUDED)
    return functional.pad(in_base_2, (pad, pad), value=EXCLUDED)
