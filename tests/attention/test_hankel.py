"""The views that stand for masks, and the sums along their diagonals, against matrices written out."""

import torch

from megatron_mep.attention.hankel import Chunk, chunks, diagonal_sums, mask_of, mask_vector
from tests.support.tolerance import assert_exact_equal

INFINITY = torch.inf


def test_chunks_cover_the_queries_at_the_end_of_the_keys():
    assert list(chunks(5, 7, 2)) == [Chunk(slice(0, 2), 4), Chunk(slice(2, 4), 6), Chunk(slice(4, 5), 7)]


def test_mask_is_the_bias_by_distance_with_rows_reversed():
    bias = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 10.0, 20.0, 30.0, 40.0]])
    vector = mask_vector(bias, num_keys=4, num_rows=2, dtype=torch.float32)
    mask = mask_of(Chunk(slice(1, 3), num_keys=3), vector, num_keys=4)
    assert mask.tolist() == [
        [[2.0, 1.0, 0.0], [1.0, 0.0, -INFINITY]],
        [[20.0, 10.0, 0.0], [10.0, 0.0, -INFINITY]],
    ]


def test_mask_holds_no_memory_of_its_own():
    vector = mask_vector(torch.zeros(3, 100), num_keys=100, num_rows=64, dtype=torch.float32)
    mask = mask_of(Chunk(slice(36, 100), num_keys=100), vector, num_keys=100)
    assert mask.shape == (3, 64, 100)
    assert mask.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()


def test_mask_of_some_heads_reads_their_vectors():
    vector = mask_vector(torch.arange(15.0).reshape(3, 5), num_keys=5, num_rows=1, dtype=torch.float32)
    chunk = Chunk(slice(4, 5), num_keys=5)
    assert_exact_equal(mask_of(chunk, vector[1:], 5), mask_of(chunk, vector, 5)[1:])


def test_diagonal_sums_run_from_the_largest_distance_to_zero():
    # three queries at positions 4, 3 and 2; column j of row r is distance 4 - r - j
    matrix = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0, 30.0, 40.0, 0.0], [100.0, 200.0, 300.0, 0.0, 0.0]])
    assert diagonal_sums(matrix[None]).tolist() == [[1.0, 12.0, 123.0, 234.0, 345.0]]


def test_diagonal_sums_of_a_square():
    matrix = torch.tensor([[1.0, 2.0], [10.0, 0.0]])
    assert diagonal_sums(matrix).tolist() == [1.0, 12.0]


def test_diagonal_sums_of_a_part_read_that_part():
    matrices = torch.tensor([[[9.0, 9.0], [9.0, 9.0]], [[1.0, 2.0], [10.0, 0.0]]])
    assert diagonal_sums(matrices[1]).tolist() == [1.0, 12.0]


def test_diagonal_sums_of_one_entry():
    assert diagonal_sums(torch.tensor([[7.0]])).tolist() == [7.0]
