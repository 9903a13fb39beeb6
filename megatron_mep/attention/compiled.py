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
    return head_size in range(HEAD_SIZE_STEP, MOST_HEAD_SIZE + 1, HEAD_SIZE_STEP)


class Passed(NamedTuple):
    """What a forward pass leaves."""

    output: Tensor
    """`[B, H, Q, D]` in fp32."""
    most: Tensor
    """The largest score of each query, to base 2: `[B, H, Q]`."""
    total: Tensor
    """The sum of all weights as multiples of the largest, which is more exact than a logarithm of it: `[B, H, Q]`."""
    biases: Tensor
    first: Tensor
    """The first key that each block of queries attends to, sinks aside: `[B, H, blocks]`."""
    num_sinks: int
    """Keys at the beginning that all attend to."""
    dropped: float
    """The largest share of any row's softmax that may have been dropped."""


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
        passed = forward_pass(query, key, value, bias, scale=scale, epsilon=epsilon)
        if work is not None:
            left_out = _left_out_pairs(passed, query.size(2))
            work.count(_causal_pairs(query, key) - left_out, query.shape, key.size(2), passed.dropped)
        output = passed.output.to(query.dtype)
        ctx.save_for_backward(query, key, value, bias, output, *passed[1:5])
        ctx.scale, ctx.num_sinks = scale, passed.num_sinks
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, output, most, total, biases, first = ctx.saved_tensors
        q, k, v, o, grad_o = (with_dense_rows(each.float()) for each in (query, key, value, output, grad_output))
        # of inputs that overlap themselves, the likeness may have other strides
        likes = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        grads = [with_dense_rows(like) for like in likes]
        call = _call_of(q, k, v, o, biases, ctx.scale)
        call.sinks = ctx.num_sinks
        call.most, call.total, call.first = (tensor.data_ptr() for tensor in (most, total, first))
        call.grad_output, call.grad_query, call.grad_key, call.grad_value = map(_View.of, (grad_o, *grads))
        grad_bias = q.new_zeros(q.size(1), k.size(2)) if ctx.needs_input_grad[3] else None
        if grad_bias is not None:
            call.grad_bias = grad_bias.data_ptr()
        _library().toeplitz_backward(ctypes.byref(call))
        if grad_bias is not None:
            grad_bias = functional.pad(grad_bias, (0, bias.size(1) - k.size(2))).to(bias.dtype)
        of_inputs = (grad.to(tensor.dtype) for grad, tensor in zip(grads, (query, key, value), strict=True))
        return *of_inputs, grad_bias, None, None, None


def forward_pass(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *, scale: float, epsilon: float) -> Passed:
    """Attention without a graph."""
    num_samples, num_heads, num_queries, head_size = query.shape
    q, k, v = (with_dense_rows(tensor.float()) for tensor in (query, key, value))
    output = q.new_empty(num_queries, num_samples, num_heads, head_size).permute(1, 2, 0, 3)
    most, total = q.new_empty(2, num_samples, num_heads, num_queries)
    biases = _laid_out(bias[:, : key.size(2)])
    first = torch.empty(num_samples, num_heads, -(-num_queries // block_rows()), dtype=torch.int64)
    dropped = q.new_empty(first.shape)
    call = _call_of(q, k, v, output, biases, scale)
    call.most, call.total, call.first, call.dropped = (each.data_ptr() for each in (most, total, first, dropped))
    bounds = _Bounds.of(k, bias) if epsilon and first.numel() else None
    if bounds:
        bounds.give_to(call, epsilon)
    _library().toeplitz_forward(ctypes.byref(call))
    return Passed(output, most, total, biases, first, call.sinks, max(dropped.flatten().tolist(), default=0.0))


def block_rows() -> int:
    """Queries of a block, of which the last may have fewer."""
    return int(_library().toeplitz_rows())


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
        *(
            (name, ctypes.c_void_p)
            for name in ("most", "total", "bias", "tails", "longest", "centred", "mean", "dropped")
        ),
        *((name, ctypes.c_void_p) for name in ("grad_bias", "first")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "groups", "queries", "keys", "size")),
        *((name, ctypes.c_int64) for name in ("sinks", "threads")),
        *((name, ctypes.c_double) for name in ("scale", "epsilon", "largest")),
    )


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
        longest, centred = (running_max(each, sinks) for each in (length, torch.linalg.vector_norm(key - mean, dim=-1)))
        tails = _laid_out(log_tails(bias[:, : key.size(2)])[:, :-1])
        return cls(tails, longest, centred, mean, sinks, float(length.amax()))

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


def _causal_pairs(query: Tensor, key: Tensor) -> int:
    """Pairs of a query and a key that it sees."""
    whole = Tile(slice(0, query.size(2)), slice(0, key.size(2)), key.size(2) - 1)
    return query.size(0) * query.size(1) * whole.num_pairs


def _left_out_pairs(passed: Passed, num_queries: int) -> int:
    """Those that were not computed."""
    before = block_rows() * torch.arange(passed.first.size(2))
    rows = (num_queries - before).clamp(max=block_rows())
    return int(((passed.first - passed.num_sinks) * rows).sum())


def _laid_out(by_distance: Tensor) -> Tensor:
    """Biases or tails `[H, K]` as the kernel reads them: logarithms to base 2 in fp32, excluded ones on both sides."""
    pad = _library().toeplitz_pad()
    in_base_2 = (by_distance.double() / math.log(2)).float().clamp(min=EXCLUDED)
    return functional.pad(in_base_2, (pad, pad), value=EXCLUDED)
