"""Tiles cover what queries see, each pair once."""

import pytest
import torch

from megatron_mep.attention.tiles import Tile, block_tiles, row_tiles


def test_row_tiles_hold_all_keys_of_their_queries():
    assert list(row_tiles(5, 7, 2)) == [
        Tile(slice(0, 2), slice(0, 4), position=3),
        Tile(slice(2, 4), slice(0, 6), position=5),
        Tile(slice(4, 5), slice(0, 7), position=6),
    ]


def test_block_tiles_take_the_keys_before_a_block_at_once():
    assert list(block_tiles(7, 7, num_rows=2, block_rows=4)) == [
        Tile(slice(0, 2), slice(0, 2), position=1),
        Tile(slice(2, 4), slice(0, 4), position=3),
        Tile(slice(4, 7), slice(0, 4), position=6),
        Tile(slice(4, 6), slice(4, 6), position=5),
        Tile(slice(6, 7), slice(4, 7), position=6),
    ]


def test_a_block_of_one_tile_is_not_split():
    assert list(block_tiles(2, 9, num_rows=2, block_rows=4)) == [Tile(slice(0, 2), slice(0, 9), position=8)]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 30), (13, 13), (13, 30), (30, 30)])
@pytest.mark.parametrize(("num_rows", "block_rows"), [(1, 1), (2, 8), (3, 7), (8, 4)])
def test_each_query_meets_each_key_that_it_sees_once(queries, keys, num_rows, block_rows):
    met = torch.zeros(queries, keys, dtype=torch.int)
    for tile in block_tiles(queries, keys, num_rows, block_rows):
        met[tile.rows, tile.keys] += 1
        assert tile.position == keys - queries + tile.rows.stop - 1
        size = tile.rows.stop - tile.rows.start
        assert size <= num_rows or tile.keys.stop <= tile.position + 2 - size, "a large tile sees the future"
    seen = torch.ones(queries, keys, dtype=torch.int).tril(keys - queries)
    assert torch.equal(met * seen, seen)


@pytest.mark.parametrize(("num_rows", "block_rows"), [(2, 8), (3, 7)])
def test_tiles_of_a_query_go_on_where_the_last_ended(num_rows, block_rows):
    reached = [0] * 30
    for tile in block_tiles(30, 40, num_rows, block_rows):
        for row in range(tile.rows.start, tile.rows.stop):
            assert tile.keys.start == reached[row]
            reached[row] = tile.keys.stop
