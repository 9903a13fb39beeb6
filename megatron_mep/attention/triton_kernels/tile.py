"""What the kernels share: how they find rows and biases of a tile of queries and keys."""

# What is constant in a compilation is in upper case, as Triton has it, and what a kernel is given has no Python type.
# ruff: noqa: N803
# mypy: allow-untyped-defs

import triton
import triton.language as tl


@triton.jit
def matrix_of(heads, sample, head):
    """Where the matrix of one sample and head begins."""
    return heads.data + tl.cast(sample, tl.int64) * heads.sample_stride + tl.cast(head, tl.int64) * heads.head_stride


@triton.jit
def pointers_of(matrix, stride, first, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Where rows first .. first + ROWS - 1 of a matrix lie: `[ROWS, SIZE]`."""
    # 64 bits once a tile: rows of a long sequence lie further apart than 32 bits count
    return matrix + tl.cast(first, tl.int64) * stride + (tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, SIZE))


@triton.jit
def load_rows(matrix, stride, first, num_rows, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Rows first .. first + ROWS - 1 as `[ROWS, SIZE]`, zeros where the matrix has no such row."""
    row = first + tl.arange(0, ROWS)
    inside = (row >= 0) & (row < num_rows)
    return tl.load(pointers_of(matrix, stride, first, ROWS, SIZE), mask=inside[:, None], other=0.0)


@triton.jit
def store_rows(matrix, stride, first, num_rows, rows, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Writes `rows [ROWS, SIZE]`, in the matrix's type, to those rows from `first` on that the matrix has."""
    inside = first + tl.arange(0, ROWS) < num_rows
    pointers = pointers_of(matrix, stride, first, ROWS, SIZE)
    tl.store(pointers, rows.to(matrix.dtype.element_ty), mask=inside[:, None])


@triton.jit
def load_numbers(vector, first, num_rows, missing, ROWS: tl.constexpr):
    """One number a row, `missing` where there is no such row: `[ROWS]`."""
    row = first + tl.arange(0, ROWS)
    return tl.load(vector + row, mask=(row >= 0) & (row < num_rows), other=missing)


@triton.jit
def distances(ROWS: tl.constexpr, KEYS: tl.constexpr):
    """How much farther apart row r and key c of a tile are than its first row and first key: `[ROWS, KEYS]`.

    Biases so addressed are ROWS + KEYS - 1 neighbours in the table, read again and again from the nearest cache.
    """
    return tl.arange(0, ROWS)[:, None] - tl.arange(0, KEYS)[None, :]


@triton.jit
def keys_of_rows(biases, head, position, num_keys, ROWS: tl.constexpr):
    """The first key that ROWS queries from `position` on see inside the window, and the one after the last."""
    window = tl.load(biases.windows + head)
    return tl.maximum(position - window + 1, 0), tl.minimum(position + ROWS, num_keys)
