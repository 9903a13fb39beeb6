"""Ranges of distances: every distance is in one, and they grow."""

import numpy as np
import pytest

from megatron_mep.analysis.distances import distance_ends, in_ranges


def test_ends_are_those_of_half_doublings():
    assert distance_ends(33) == (0, 1, 2, 3, 5, 7, 10, 15, 22, 31, 32)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 63, 64, 65, 1000, 4096])
def test_ranges_grow_up_to_the_last_distance(length: int):
    ends = distance_ends(length)
    widths = np.diff((-1, *ends))
    assert ends[-1] == length - 1
    assert (widths >= 1).all()
    assert (np.diff(widths[:-1]) >= 0).all(), "but for the last, which ends with the window"


def test_sums_over_ranges_are_those_of_their_distances():
    by_distance = np.arange(2 * 12, dtype=np.float64).reshape(2, 12) ** 2
    ends = distance_ends(12)
    assert ends == (0, 1, 2, 3, 5, 7, 10, 11)
    expected = [[sum(row[first : end + 1]) for first, end in zip((0, 1, 2, 3, 4, 6, 8, 11), ends, strict=True)]
                for row in by_distance.tolist()]  # fmt: skip
    assert in_ranges(by_distance, ends).tolist() == expected
