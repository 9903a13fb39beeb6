"""The views that stand for masks, and the sums along their diagonals, against matrices written out."""

import pytest
import torch

from megatron_mep.attention.hankel import (
    EXCLUDED,
    add_to_keys,
    diagonal_sums,
    first_entry,
    keys_of,
    mask_of,
    mask_vector,
    rows_of,
)
from megatron_mep.attention.tiles import Tile
from tests.support.tolerance import assert_exact_equal

NONE = torch.tensor(EXCLUDED).item()


def test_mask_is_the_bias_by_distance_with_rows_reversed():
    bias = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 10.0, 20.0, 30.0, 40.0]])
    vector = mask_vector(bias, num_keys=4, num_rows=2, dtype=torch.float32)
    mask = mask_of(Tile(slice(1, 3), slice(0, 3), position=2), vector, num_keys=4)
    assert mask.tolist() == [[[[2.0, 1.0, 0.0], [1.0, 0.0, NONE]], [[20.0, 10.0, 0.0], [10.0, 0.0, NONE]]]]


def test_mask_of_keys_before_the_queries():
    vector = mask_vector(torch.arange(9.0)[None], num_keys=9, num_rows=1, dtype=torch.float32)
    mask = mask_of(Tile(slice(0, 3), slice(2, 4), position=7), vector, num_keys=9)
    assert mask.tolist() == [[[[5.0, 4.0], [4.0, 3.0], [3.0, 2.0]]]]


def test_excluded_distances_stay_finite():
    bias = torch.tensor([[0.0, -torch.inf]])
    vector = mask_vector(bias, num_keys=2, num_rows=2, dtype=torch.float32)
    assert vector.tolist() == [[NONE, 0.0, NONE]]


def test_mask_holds_no_memory_of_its_own():
    vector = mask_vector(torch.zeros(3, 100), num_keys=100, num_rows=64, dtype=torch.float32)
    mask = mask_of(Tile(slice(36, 100), slice(0, 100), position=99), vector, num_keys=100)
    assert mask.shape == (1, 3, 64, 100)
    assert mask.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()


def test_mask_of_some_heads_reads_their_vectors():
    vector = mask_vector(torch.arange(15.0).reshape(3, 5), num_keys=5, num_rows=1, dtype=torch.float32)
    tile = Tile(slice(4, 5), slice(0, 5), position=4)
    assert_exact_equal(mask_of(tile, vector[1:], 5), mask_of(tile, vector, 5)[:, 1:])


def test_diagonal_sums_run_from_the_largest_distance_to_zero():
    # three queries at positions 4, 3 and 2; column j of row r is distance 4 - r - j
    matrix = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0, 30.0, 40.0, 0.0], [100.0, 200.0, 300.0, 0.0, 0.0]])
    assert diagonal_sums(matrix[None], on_diagonal=True).tolist() == [[1.0, 12.0, 123.0, 234.0, 345.0]]


def test_diagonal_sums_of_a_square():
    matrix = torch.tensor([[1.0, 2.0], [10.0, 0.0]])
    assert diagonal_sums(matrix, on_diagonal=True).tolist() == [1.0, 12.0]


def test_diagonal_sums_of_a_part_read_that_part():
    matrices = torch.tensor([[[9.0, 9.0], [9.0, 9.0]], [[1.0, 2.0], [10.0, 0.0]]])
    assert diagonal_sums(matrices[1], on_diagonal=True).tolist() == [1.0, 12.0]


def test_diagonal_sums_of_one_entry():
    assert diagonal_sums(torch.tensor([[7.0]]), on_diagonal=True).tolist() == [7.0]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_diagonal_sums_before_the_diagonal(size):
    matrix = torch.arange(3.0 * size).reshape(3, size) + 1
    by_distance = [sum(matrix[row, entry - row] for row in range(3) if 0 <= entry - row < size)
                   for entry in range(size + 2)]  # fmt: skip
    assert diagonal_sums(matrix, on_diagonal=False).tolist() == [float(total) for total in by_distance]


def test_the_first_entry_is_the_largest_distance():
    tile = Tile(slice(0, 3), slice(2, 4), position=7)
    vector = mask_vector(torch.arange(9.0)[None], num_keys=9, num_rows=1, dtype=torch.float32)
    assert vector[0, first_entry(tile, 9)] == 7 - 2


BAND = Tile(slice(1, 3), slice(0, 5), position=4, num_tiles=3)


def test_the_tiles_of_a_band_have_one_mask():
    vector = mask_vector(torch.randn(2, 9), num_keys=9, num_rows=2, dtype=torch.float32)
    for step in range(3):
        assert_exact_equal(mask_of(BAND, vector, 9)[step], mask_of(BAND.moved(step), vector, 9)[0])


def test_a_band_reads_rows_and_keys_of_its_tiles():
    tensor = torch.randn(2, 9, 3, 4).transpose(1, 2)[0].transpose(0, 1).transpose(0, 1)  # [3, 9, 4], strided
    for step in range(3):
        tile = BAND.moved(step)
        assert_exact_equal(rows_of(tensor, BAND)[step], rows_of(tensor[None], tile)[0])
        assert_exact_equal(keys_of(tensor, BAND)[step], keys_of(tensor[None], tile)[0])


def test_rows_are_written_where_they_are():
    tensor = torch.zeros(3, 9, 4)
    rows_of(tensor, BAND).copy_(torch.ones(3, 3, 2, 4))
    assert tensor[:, BAND.all_rows].eq(1).all()
    assert tensor.sum() == 3 * 6 * 4


def test_keys_that_tiles_of_a_band_share_are_added_to_by_each():
    part = torch.randn(3, 2, 5, 4)
    whole, expected = torch.zeros(2, 9, 4), torch.zeros(2, 9, 4)
    add_to_keys(whole, BAND, part)
    for step in range(3):
        expected[:, BAND.moved(step).keys] += part[step]
    torch.testing.assert_close(whole, expected)
