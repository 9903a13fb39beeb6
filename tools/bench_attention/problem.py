"""What all contenders compute: causal attention under MEP's bias, on the same random tensors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from megatron_mep.encodings.mep import Mep

Case = Literal["forward", "forward+backward"]
CASES: tuple[Case, ...] = ("forward", "forward+backward")


@dataclass(frozen=True)
class Shape:
    """Of one attention; query and key have equal lengths."""

    batch: int
    heads: int
    groups: int
    length: int
    head_size: int
    layout: Literal["bhsd", "sbhd"] = "bhsd"
    """Order in memory."""
    device_type: Literal["cpu", "cuda"] = "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """What the device trains in."""
        return torch.float32 if self.device_type == "cpu" else torch.bfloat16


class Inputs(NamedTuple):
    """Of one attention."""

    query: Tensor
    """`[B, H, S, D]`, as the gradient of the output."""
    key: Tensor
    """`[B, G, S, D]`, as the value."""
    value: Tensor
    bias: Tensor
    """`[H, S]` by distance, fp32."""
    grad_output: Tensor

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.query.size(3) ** -0.5)

    def leaves(self, case: Case, learned: bool) -> "Inputs":
        """The same memory, at the start of a graph of its own."""
        backward = case == "forward+backward"
        query, key, value = (tensor.detach().requires_grad_(backward) for tensor in self[:3])
        bias = self.bias.detach().requires_grad_(backward and learned)
        return Inputs(query, key, value, bias, self.grad_output)

    def wanting_gradients(self) -> Iterator[Tensor]:
        """Query, key, value and a bias that learns."""
        return (tensor for tensor in self if tensor.requires_grad)


def inputs_of(shape: Shape) -> Inputs:
    """Normal queries, keys, values and output gradients, the same in each call."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, grad_output = (
        _normal(shape, num, generator) for num in (shape.heads, shape.groups, shape.groups, shape.heads)
    )
    return Inputs(query, key, value, mep_bias(shape), grad_output)


def mep_bias(shape: Shape) -> Tensor:
    """The bias `[H, S]` of MEP's default: exponential and Gaussian kernels with ALiBi's slopes."""
    encoding = Mep()
    weights = {
        name: weight.value.to(shape.device_type)
        for name, weight in encoding.weights(shape.heads, torch.Generator()).items()
    }
    return encoding.of_distance(torch.arange(shape.length, dtype=torch.float32, device=shape.device_type), **weights)


def _normal(shape: Shape, num: int, generator: torch.Generator) -> Tensor:
    """Random `[B, num, S, D]` in the layout asked for."""
    if shape.layout == "bhsd":
        drawn = torch.randn(shape.batch, num, shape.length, shape.head_size, generator=generator)
    else:
        drawn = torch.randn(shape.length, shape.batch, num, shape.head_size, generator=generator).permute(1, 2, 0, 3)
    return drawn.to(shape.device_type, shape.dtype)
