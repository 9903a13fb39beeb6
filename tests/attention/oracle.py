"""Causal attention one query at a time in fp64, and what the tests of this folder share to compare with it."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_mep.attention.compiled import compiled_attention
from megatron_mep.attention.native import why_absent

SCALE = 0.3


class Shape(NamedTuple):
    """Of one attention."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    head_size: int = 8


class Inputs(NamedTuple):
    """Query, key, value and bias by distance, leaves of a graph; and the output's gradient."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    grad_output: Tensor

    def double(self) -> "Inputs":
        """The same numbers in fp64."""
        return Inputs(*(tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in self))


def random_inputs(shape: Shape, dtype: torch.dtype = torch.float32, learned: bool = True) -> Inputs:
    """Contiguous; the bias falls with distance, is fp32 or wider and five distances longer than the keys."""
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(dtype)

    batch, heads, groups, queries, keys, size = shape
    decay = torch.linspace(0.01, 1.0, heads)[:, None] * torch.arange(keys + 5)
    bias = torch.randn(heads, keys + 5, generator=generator) - decay
    bias = bias.to(torch.promote_types(dtype, torch.float32)).requires_grad_(learned)
    sizes = [(batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, size)]
    return Inputs(*(normal(*each).requires_grad_() for each in sizes), bias, normal(batch, heads, queries, size))


def attend_by_query(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, window: Tensor | None = None) -> Tensor:
    """Each query on its own over the keys it sees, at most `window[h]` of them, itself included."""
    num_samples, num_heads, num_queries, _ = query.shape
    num_groups, num_keys = key.shape[1:3]
    output = torch.empty_like(query).tolist()
    for sample in range(num_samples):
        for head in range(num_heads):
            group = head // (num_heads // num_groups)
            for index in range(num_queries):
                position = num_keys - num_queries + index
                first = 0 if window is None else max(0, position + 1 - int(window[head]))
                seen = slice(first, position + 1)
                scores = SCALE * key[sample, group, seen] @ query[sample, head, index]
                scores = scores + bias[head, : position + 1 - first].flip(0)
                output[sample][head][index] = scores.softmax(0) @ value[sample, group, seen]
    return torch.stack([torch.stack([torch.stack(rows) for rows in heads]) for heads in output])


def output_and_gradients(attend: Callable[..., Tensor], inputs: Inputs) -> dict[str, Tensor]:
    """The output and the gradients of all leaves, by name."""
    leaves = {name: leaf for name, leaf in inputs._asdict().items() if leaf.requires_grad}
    output = attend(*inputs[:4])
    gradients = torch.autograd.grad(output, tuple(leaves.values()), inputs.grad_output.to(output.dtype))
    names = (f"gradient of {name}" for name in leaves)
    return {"output": output.detach(), **dict(zip(names, gradients, strict=True))}


def compiled_or_skip() -> Callable[..., Tensor]:
    """Compiled attention, where its kernel can be had."""
    absent = why_absent()
    if absent:
        pytest.skip(absent)
    return compiled_attention


class LargestStorage(TorchDispatchMode):
    """Records the most numbers that one storage made inside holds."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result
