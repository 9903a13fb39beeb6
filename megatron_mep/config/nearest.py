"""What a remedy proposes in the place of a number that does not fit."""

from collections.abc import Sequence


def divisors(whole: int) -> list[int]:
    """All that divide a number."""
    return [size for size in range(1, whole + 1) if whole % size == 0]


def nearest(wanted: int, fitting: Sequence[int]) -> int:
    """Of some numbers, the one nearest to what was stated."""
    return min(fitting, key=lambda size: (abs(size - wanted), size))
