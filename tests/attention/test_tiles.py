"""Tiles cover what queries see, each pair once."""

import pytest
import torch

from megatron_mep.attention.tiles import Tile, block_tiles, in_bands, row_tiles


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
        Tile(slice(4, 6), slice(4, 6), position=5),
        Tile(slice(6, 7), slice(4, 7), position=6),
        Tile(slice(4, 7), slice(0, 4), position=6),
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
def test_a_query_sees_itself_in_its_first_tile(num_rows, block_rows):
    met = set()
    for tile in block_tiles(30, 40, num_rows, block_rows):
        rows = set(range(tile.rows.start, tile.rows.stop))
        assert tile.on_diagonal == rows.isdisjoint(met)
        assert tile.on_diagonal or rows <= met
        met |= rows
    assert met == set(range(30))


def test_pairs_of_a_tile_leave_out_the_future():
    assert Tile(slice(0, 3), slice(2, 7), position=6).num_pairs == 3 + 4 + 5
    assert Tile(slice(0, 3), slice(0, 4), position=6).num_pairs == 3 * 4
    assert Tile(slice(0, 3), slice(2, 7), position=6, num_tiles=4).num_pairs == 4 * 12


def test_heads_read_the_keys_of_their_groups():
    tile = Tile(slice(0, 1), slice(0, 1), position=0)
    assert tile.groups(2) == slice(None)
    assert tile._replace(heads=slice(4, 8)).groups(2) == slice(2, 4)
    assert tile._replace(heads=slice(5, 6)).groups(2) == slice(2, 3)


def test_a_band_is_its_tiles_one_after_the_other():
    band = Tile(slice(4, 6), slice(1, 6), position=5, heads=slice(0, 2), num_tiles=3)
    tiles = [band.moved(step) for step in range(3)]
    assert tiles == [
        Tile(slice(4, 6), slice(1, 6), position=5, heads=slice(0, 2)),
        Tile(slice(6, 8), slice(3, 8), position=7, heads=slice(0, 2)),
        Tile(slice(8, 10), slice(5, 10), position=9, heads=slice(0, 2)),
    ]
    assert list(in_bands(tiles, longest=5)) == [band]
    assert band.all_rows == slice(4, 10)


def test_what_makes_no_band_stays_apart():
    first = Tile(slice(0, 2), slice(0, 2), position=1)
    rest = [first.moved(1)._replace(keys=slice(0, 4)), first.moved(2)._replace(heads=slice(0, 1)), first.moved(4)]
    assert list(in_bands([first, *rest], longest=5)) == [first, *rest]


def test_bands_are_no_longer_than_asked():
    first = Tile(slice(0, 2), slice(0, 2), position=1)
    bands = list(in_bands([first.moved(step) for step in range(5)], longest=2))
    assert [band.num_tiles for band in bands] == [2, 2, 1]
    assert [band.rows.start for band in bands] == [0, 4, 8]
