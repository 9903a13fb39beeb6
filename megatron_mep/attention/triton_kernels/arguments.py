"""What the kernels are given, as Triton takes it: tensors with their strides, and numbers."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.triton_kernels.blocks import LARGEST_BLOCK


class Heads(NamedTuple):
    """A matrix for each sample and head, `[B, heads, positions, D]`, D contiguous."""

    data: Tensor
    sample_stride: int
    head_stride: int
    row_stride: int


class Biases(NamedTuple):
    """By distance, of all heads; `table_of` makes them."""

    table: Tensor
    """`[H, ...]` fp32, in base 2 and masked; it starts at distance 0."""
    head_stride: int
    windows: Tensor
    """`[H]` int32: how many distances each head keeps, at most K."""


class Sizes(NamedTuple):
    """Of one attention."""

    num_samples: int
    num_heads: int
    group_size: int
    num_queries: int
    num_keys: int


class Scale(NamedTuple):
    """Factor of the scores."""

    natural: float
    binary: float
    """Of scores in base 2."""


class Inputs(NamedTuple):
    """Of the forward pass: the first arguments of every kernel."""

    query: Heads
    key: Heads
    value: Heads
    biases: Biases
    sizes: Sizes
    scale: Scale


class Rows(NamedTuple):
    """What the gradients need of each query."""

    grad_output: Heads
    logsumexp: Tensor
    """`[B, H, Q]` fp32: the base-2 logarithm of the softmax's denominator."""
    product: Tensor
    """`[B, H, Q]` fp32: output times its gradient, summed over D."""


def heads_of(tensor: Tensor) -> Heads:
    """The tensor `[B, heads, positions, D]` as an argument."""
    assert tensor.stride(-1) == 1, "a row of a head must be contiguous"
    return Heads(tensor, *tensor.stride()[:3])


def inputs_of(query: Tensor, key: Tensor, value: Tensor, table: Tensor, windows: Tensor, scale: float) -> Inputs:
    """The arguments that all kernels share."""
    num_samples, num_heads, num_queries, _ = query.shape
    num_groups, num_keys = key.shape[1:3]
    return Inputs(
        heads_of(query),
        heads_of(key),
        heads_of(value),
        Biases(table, table.stride(0), windows),
        Sizes(num_samples, num_heads, num_heads // num_groups, num_queries, num_keys),
        Scale(scale, scale / math.log(2)),
    )


def table_of(bias: Tensor, windows: Tensor, num_keys: int) -> Tensor:
    """The biases `[H, N >= K]` in base 2, -inf wherever attention must not look: so no kernel compares positions.

    That is from the window on, and at negative distances, which lie in the future. Tiles reach over both ends, and so
    do those read ahead.
    """
    dropped = torch.arange(num_keys, device=bias.device) >= windows[:, None]
    seen = (bias[:, :num_keys] / math.log(2)).masked_fill(dropped, -math.inf)
    margin = 4 * LARGEST_BLOCK
    return functional.pad(seen, (margin, margin), value=-math.inf)[:, margin:]
