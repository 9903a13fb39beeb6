"""The output: a program goes over the keys that a block of queries sees."""

# What is constant in a compilation is in upper case, as Triton has it, and what a kernel is given has no Python type.
# ruff: noqa: N803
# mypy: allow-untyped-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from megatron_mep.attention.triton_kernels.arguments import Inputs, heads_of
from megatron_mep.attention.triton_kernels.blocks import Launch
from megatron_mep.attention.triton_kernels.tile import distances, keys_of_rows, load_rows, matrix_of, store_rows


def forward(inputs: Inputs, launch: Launch) -> tuple[Tensor, Tensor]:
    """The output `[B, H, Q, D]`, and the base-2 logarithm of each softmax's denominator, `[B, H, Q]` fp32."""
    query = inputs.query.data
    num_samples, num_heads, num_queries, head_size = query.shape
    output = query.new_empty(num_queries, num_samples, num_heads, head_size).permute(1, 2, 0, 3)
    logsumexp = query.new_empty(query.shape[:3], dtype=torch.float32)
    grid = triton.cdiv(num_queries, launch.rows), num_samples * num_heads
    _forward_kernel[grid](*inputs, heads_of(output), logsumexp, SIZE=head_size, **launch.options)
    return output, logsumexp


@triton.jit
def _forward_kernel(
    query,
    key,
    value,
    biases,
    sizes,
    scale,
    output,
    logsumexp,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Output and base-2 logarithm of the softmax's denominator, of ROWS queries of one sample and head.

    Args:
        query: `Inputs`, as far as scale.
        output: `Heads`.
        logsumexp: `[B, H, Q]` fp32.
    """
    # the last queries see the most keys, so they start first
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    sample = tl.program_id(1) // sizes.num_heads
    head = tl.program_id(1) % sizes.num_heads
    keys = matrix_of(key, sample, head // sizes.group_size)
    values = matrix_of(value, sample, head // sizes.group_size)
    queries = matrix_of(query, sample, head)
    queries = load_rows(queries, query.row_stride, first_row, sizes.num_queries, ROWS, SIZE)

    position = sizes.num_keys - sizes.num_queries + first_row
    table = biases.table + head * biases.head_stride + position + distances(ROWS, KEYS)
    start, stop = keys_of_rows(biases, head, position, sizes.num_keys, ROWS)
    # finite, for a row whose first keys are all masked
    maximum = tl.full((ROWS,), -1e30, tl.float32)
    denominator = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS, SIZE), tl.float32)
    # read one tile ahead here: among the staged loads they would take shared memory
    tile_biases = tl.load(table - start)
    for first_key in range(start, stop, KEYS):
        tile_keys = load_rows(keys, key.row_stride, first_key, sizes.num_keys, KEYS, SIZE)
        scores = tl.dot(queries, tile_keys.T, input_precision="ieee") * scale.binary + tile_biases
        tile_biases = tl.load(table - first_key - KEYS)
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - new_maximum[:, None])
        shrink = tl.exp2(maximum - new_maximum)
        denominator = denominator * shrink + tl.sum(weights, 1)
        maximum = new_maximum
        tile_values = load_rows(values, value.row_stride, first_key, sizes.num_keys, KEYS, SIZE)
        weighted *= shrink[:, None]
        weighted = tl.dot(weights.to(tile_values.dtype), tile_values, weighted, input_precision="ieee")

    row = first_row + tl.arange(0, ROWS)
    logsumexp += tl.cast(tl.program_id(1), tl.int64) * sizes.num_queries
    tl.store(logsumexp + row, maximum + tl.log2(denominator), mask=row < sizes.num_queries)
    weighted /= denominator[:, None]
    store_rows(matrix_of(output, sample, head), output.row_stride, first_row, sizes.num_queries, weighted, ROWS, SIZE)
