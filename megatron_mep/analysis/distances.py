"""Ranges of distances between a query and its keys that grow with the distance."""

import numpy as np
from numpy.typing import NDArray

PER_DOUBLING = 2
"""Ranges in which a distance doubles, once they are longer than 1."""


def distance_ends(length: int) -> tuple[int, ...]:
    """The last distance of each range of 0 ... `length` - 1: 0, 1, 2, 3, 5, 7, 10, 15, ..."""
    exponents = np.arange(PER_DOUBLING * (length.bit_length() + 1)) / PER_DOUBLING
    ends = np.unique(np.rint(2**exponents).astype(np.int64)) - 1
    return (*ends[ends < length - 1].tolist(), length - 1)


def in_ranges(by_distance: NDArray[np.float64], ends: tuple[int, ...]) -> NDArray[np.float64]:
    """The sums over each range of what stands by distance in the last dimension, `[..., length]` -> `[..., ranges]`."""
    starts = (0, *(end + 1 for end in ends[:-1]))
    sums: NDArray[np.float64] = np.add.reduceat(by_distance, starts, axis=-1)
    return sums
