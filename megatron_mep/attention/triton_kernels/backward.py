"""Gradients of queries, keys and values: each of their rows is kept by one program from start to end."""

# What is constant in a compilation is in upper case, as Triton has it, and what a kernel is given has no Python type.
# ruff: noqa: N803
# mypy: allow-untyped-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from megatron_mep.attention.triton_kernels.arguments import Inputs, Rows, heads_of
from megatron_mep.attention.triton_kernels.blocks import Launch
from megatron_mep.attention.triton_kernels.tile import (
    distances,
    keys_of_rows,
    load_numbers,
    load_rows,
    matrix_of,
    store_rows,
)


def query_gradient(inputs: Inputs, rows: Rows, output: Tensor, launch: Launch) -> Tensor:
    """The gradient of the queries; it also fills in `rows.product`, which all other gradients read."""
    sizes, query = inputs.sizes, inputs.query.data
    gradient = torch.empty_like(query)
    grid = triton.cdiv(sizes.num_queries, launch.rows), sizes.num_samples * sizes.num_heads
    arguments = *inputs, *rows, heads_of(output), heads_of(gradient)
    _query_gradient_kernel[grid](*arguments, SIZE=query.size(3), **launch.options)
    return gradient


def key_value_gradients(inputs: Inputs, rows: Rows, launch: Launch) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values."""
    sizes, key = inputs.sizes, inputs.key.data
    gradients = torch.empty_like(key), torch.empty_like(inputs.value.data)
    grid = triton.cdiv(sizes.num_keys, launch.keys), sizes.num_samples * key.size(1)
    arguments = *inputs, *rows, *map(heads_of, gradients)
    _key_value_gradient_kernel[grid](*arguments, SIZE=key.size(3), **launch.options)
    return gradients


@triton.jit
def _query_gradient_kernel(
    query,
    key,
    value,
    biases,
    sizes,
    scale,
    grad_output,
    logsumexp,
    product,
    output,
    grad_query,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The gradient of ROWS queries of one sample and head, and what the other gradients need of these rows.

    Args:
        query: `Inputs`, as far as scale.
        grad_output: `Rows`, as far as product, which is written here.
        output: `Heads`, and likewise grad_query.
    """
    # the last queries see the most keys, so they start first
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    num_queries = sizes.num_queries
    sample = tl.program_id(1) // sizes.num_heads
    head = tl.program_id(1) % sizes.num_heads
    keys = matrix_of(key, sample, head // sizes.group_size)
    values = matrix_of(value, sample, head // sizes.group_size)
    queries = load_rows(matrix_of(query, sample, head), query.row_stride, first_row, num_queries, ROWS, SIZE)
    outputs = load_rows(matrix_of(output, sample, head), output.row_stride, first_row, num_queries, ROWS, SIZE)
    grads = matrix_of(grad_output, sample, head)
    grads = load_rows(grads, grad_output.row_stride, first_row, num_queries, ROWS, SIZE)

    row = first_row + tl.arange(0, ROWS)
    first_number = tl.cast(tl.program_id(1), tl.int64) * num_queries
    normalizers = load_numbers(logsumexp + first_number, first_row, num_queries, float("inf"), ROWS)
    products = tl.sum(outputs.to(tl.float32) * grads.to(tl.float32), 1)
    tl.store(product + first_number + row, products, mask=row < num_queries)

    position = sizes.num_keys - num_queries + first_row
    table = biases.table + head * biases.head_stride + position + distances(ROWS, KEYS)
    start, stop = keys_of_rows(biases, head, position, sizes.num_keys, ROWS)
    gradient = tl.zeros((ROWS, SIZE), tl.float32)
    tile_biases = tl.load(table - start)
    for first_key in range(start, stop, KEYS):
        tile_keys = load_rows(keys, key.row_stride, first_key, sizes.num_keys, KEYS, SIZE)
        scores = tl.dot(queries, tile_keys.T, input_precision="ieee") * scale.binary + tile_biases
        tile_biases = tl.load(table - first_key - KEYS)
        weights = tl.exp2(scores - normalizers[:, None])
        tile_values = load_rows(values, value.row_stride, first_key, sizes.num_keys, KEYS, SIZE)
        grad_weights = tl.dot(grads, tile_values.T, input_precision="ieee")
        grad_scores = (weights * (grad_weights - products[:, None])).to(tile_keys.dtype)
        gradient = tl.dot(grad_scores, tile_keys, gradient, input_precision="ieee")

    gradients = matrix_of(grad_query, sample, head)
    store_rows(gradients, grad_query.row_stride, first_row, num_queries, gradient * scale.natural, ROWS, SIZE)


@triton.jit
def _key_value_gradient_kernel(
    query,
    key,
    value,
    biases,
    sizes,
    scale,
    grad_output,
    logsumexp,
    product,
    grad_key,
    grad_value,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The gradients of KEYS keys and values of one sample and group: over the heads of the group, and their queries.

    Tiles are keys by queries, so that they enter the products as they are.

    Args:
        query: `Inputs`, as far as scale.
        grad_output: `Rows`, as far as product.
        grad_key: `Heads`, and likewise grad_value.
    """
    # the first keys are seen by the most queries, so they start first
    first_key = tl.program_id(0) * KEYS
    num_queries = sizes.num_queries
    num_groups = sizes.num_heads // sizes.group_size
    sample = tl.program_id(1) // num_groups
    group = tl.program_id(1) % num_groups
    keys = load_rows(matrix_of(key, sample, group), key.row_stride, first_key, sizes.num_keys, KEYS, SIZE)
    values = load_rows(matrix_of(value, sample, group), value.row_stride, first_key, sizes.num_keys, KEYS, SIZE)

    # from the first key to the first query, in positions
    ahead = sizes.num_keys - num_queries - first_key
    key_gradient = tl.zeros((KEYS, SIZE), tl.float32)
    value_gradient = tl.zeros((KEYS, SIZE), tl.float32)
    for head in range(group * sizes.group_size, (group + 1) * sizes.group_size):
        queries = matrix_of(query, sample, head)
        grads = matrix_of(grad_output, sample, head)
        first_number = tl.cast(sample * sizes.num_heads + head, tl.int64) * num_queries
        table = biases.table + head * biases.head_stride + ahead - distances(KEYS, ROWS)
        start = tl.maximum(-ahead, 0)
        stop = tl.minimum(KEYS - 1 + tl.load(biases.windows + head) - ahead, num_queries)
        tile_biases = tl.load(table + start)
        for first_row in range(start, stop, ROWS):
            tile_queries = load_rows(queries, query.row_stride, first_row, num_queries, ROWS, SIZE)
            normalizers = load_numbers(logsumexp + first_number, first_row, num_queries, float("inf"), ROWS)
            scores = tl.dot(keys, tile_queries.T, input_precision="ieee") * scale.binary + tile_biases
            tile_biases = tl.load(table + first_row + ROWS)
            weights = tl.exp2(scores - normalizers[None, :])
            tile_grads = load_rows(grads, grad_output.row_stride, first_row, num_queries, ROWS, SIZE)
            value_gradient = tl.dot(weights.to(tile_grads.dtype), tile_grads, value_gradient, input_precision="ieee")
            products = load_numbers(product + first_number, first_row, num_queries, 0.0, ROWS)
            grad_weights = tl.dot(values, tile_grads.T, input_precision="ieee")
            grad_scores = (weights * (grad_weights - products[None, :])).to(tile_queries.dtype)
            key_gradient = tl.dot(grad_scores, tile_queries, key_gradient, input_precision="ieee")

    key_gradient *= scale.natural
    gradients = matrix_of(grad_key, sample, group)
    store_rows(gradients, grad_key.row_stride, first_key, sizes.num_keys, key_gradient, KEYS, SIZE)
    gradients = matrix_of(grad_value, sample, group)
    store_rows(gradients, grad_value.row_stride, first_key, sizes.num_keys, value_gradient, KEYS, SIZE)
