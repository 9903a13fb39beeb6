"""The gradient of a bias by distance, without an atomic addition: a program keeps one block diagonal of a head.

All tiles of a block diagonal hold the same distances. Their score gradients are therefore summed entry by entry over
the diagonal and the batch, and what lies at the same distance only then, once.
"""

# What is constant in a compilation is in upper case, as Triton has it, and what a kernel is given has no Python type.
# ruff: noqa: N803
# mypy: allow-untyped-defs

import triton
import triton.language as tl
from torch import Tensor

from megatron_mep.attention.triton_kernels.arguments import Inputs, Rows
from megatron_mep.attention.triton_kernels.blocks import Launch
from megatron_mep.attention.triton_kernels.tile import distances, load_numbers, load_rows, matrix_of


def bias_gradient(inputs: Inputs, rows: Rows, launch: Launch) -> Tensor:
    """The gradient of the biases at the distances of K keys, `[H, K]` fp32."""
    sizes = inputs.sizes
    grid = triton.cdiv(sizes.num_keys, launch.keys), sizes.num_heads
    sums = inputs.biases.table.new_zeros(sizes.num_heads, grid[0], 2, launch.keys)
    _bias_gradient_kernel[grid](*inputs, *rows, sums, SIZE=inputs.query.data.size(3), **launch.options)
    # a distance lies in two diagonals, but for the last ones
    gradient = sums[:, :, 1]
    gradient[:, :-1] += sums[:, 1:, 0]
    return gradient.flatten(1)[:, : sizes.num_keys]


@triton.jit
def _bias_gradient_kernel(
    query,
    key,
    value,
    biases,
    sizes,
    scale,
    grad_output,
    logsumexp,
    product,
    sums_by_distance,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The score gradients of one head in block diagonal n, whose queries stand n KEYS positions after their keys.

    Args:
        query: `Inputs`, as far as scale.
        grad_output: `Rows`, as far as product.
        sums_by_distance: `[H, diagonals, 2 KEYS]` fp32; entry t of diagonal n is its sum at distance (n - 1) KEYS + t.
            A diagonal outside the window is left alone.
    """
    tl.static_assert(ROWS == KEYS, "a block diagonal is made of squares")
    # the first diagonals have the most tiles, so they start first
    distance = tl.program_id(0) * KEYS
    head = tl.program_id(1)
    if distance - KEYS + 1 < tl.load(biases.windows + head):
        first_position = sizes.num_keys - sizes.num_queries
        tile_biases = tl.load(biases.table + head * biases.head_stride + distance + distances(ROWS, KEYS))
        start = tl.maximum(first_position // ROWS * ROWS - distance, 0)
        sums = tl.zeros((ROWS, KEYS), tl.float32)
        for sample in range(sizes.num_samples):
            queries = matrix_of(query, sample, head)
            keys = matrix_of(key, sample, head // sizes.group_size)
            values = matrix_of(value, sample, head // sizes.group_size)
            grads = matrix_of(grad_output, sample, head)
            first_number = tl.cast(sample * sizes.num_heads + head, tl.int64) * sizes.num_queries
            for first_key in range(start, sizes.num_keys - distance, KEYS):
                # negative where the first query stands inside a block
                row = first_key + distance - first_position
                tile_queries = load_rows(queries, query.row_stride, row, sizes.num_queries, ROWS, SIZE)
                tile_keys = load_rows(keys, key.row_stride, first_key, sizes.num_keys, KEYS, SIZE)
                normalizers = load_numbers(logsumexp + first_number, row, sizes.num_queries, float("inf"), ROWS)
                scores = tl.dot(tile_queries, tile_keys.T, input_precision="ieee") * scale.binary + tile_biases
                weights = tl.exp2(scores - normalizers[:, None])
                tile_values = load_rows(values, value.row_stride, first_key, sizes.num_keys, KEYS, SIZE)
                tile_grads = load_rows(grads, grad_output.row_stride, row, sizes.num_queries, ROWS, SIZE)
                products = load_numbers(product + first_number, row, sizes.num_queries, 0.0, ROWS)
                grad_weights = tl.dot(tile_grads, tile_values.T, input_precision="ieee")
                sums += weights * (grad_weights - products[:, None])

        # entry t of row r lies at column r + KEYS - t: each row shifted by one against the one above
        column = tl.arange(0, ROWS)[:, None] + KEYS - tl.arange(0, 2 * KEYS)[None, :]
        inside = (column >= 0) & (column < KEYS)
        skewed = tl.gather(sums, tl.where(inside, column, 0), 1)
        place = tl.cast(head * tl.num_programs(0) + tl.program_id(0), tl.int64) * 2 * KEYS
        tl.store(sums_by_distance + place + tl.arange(0, 2 * KEYS), tl.sum(tl.where(inside, skewed, 0.0), 0))
