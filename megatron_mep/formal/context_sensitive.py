"""Context-sensitive tasks: a stack does not suffice to answer them."""

import math
from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from megatron_mep.formal.context_free import LETTERS
from megatron_mep.formal.task import NEURAL_CHOMSKY, POSITIONAL_IMPACT, Exercise, Task, drawn


class Copy(Task):
    """The letters once more: `a b c` -> `a b c`."""

    source: ClassVar[str] = POSITIONAL_IMPACT
    counts: ClassVar[str] = "letters"
    name: Literal["copy"] = "copy"
    letters: int = Field(default=26, ge=2, le=26)
    """How many letters there are."""

    def draw(self, length: int, random: Random) -> Exercise:
        """Letters."""
        letters = drawn(LETTERS[: self.letters], length, random)
        return Exercise(letters, letters)


class DuplicateString(Task):
    """The letters twice: `a b` -> `a b a b`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "letters"
    name: Literal["duplicate_string"] = "duplicate_string"

    def draw(self, length: int, random: Random) -> Exercise:
        """Letters."""
        letters = drawn("ab", length, random)
        return Exercise(letters, letters + letters)


class MissingDuplicate(Task):
    """The letter that is hidden in one of two equal halves: `a b a ?` -> `b`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "letters of each half"
    name: Literal["missing_duplicate"] = "missing_duplicate"

    def draw(self, length: int, random: Random) -> Exercise:
        """Two halves."""
        whole = 2 * drawn("ab", length, random)
        hidden = random.randrange(len(whole))
        return Exercise((*whole[:hidden], "?", *whole[hidden + 1 :]), (whole[hidden],))


class OddsFirst(Task):
    """The letters at odd places, then those at even ones, counted from 1: `a b a a` -> `a a b a`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "letters"
    name: Literal["odds_first"] = "odds_first"

    def draw(self, length: int, random: Random) -> Exercise:
        """Letters."""
        letters = drawn("ab", length, random)
        return Exercise(letters, letters[::2] + letters[1::2])


class Sort(Task):
    """The digits in ascending order: `3 0 3 1` -> `0 1 3 3`."""

    source: ClassVar[str] = f"{NEURAL_CHOMSKY} (bucket sort); {POSITIONAL_IMPACT}"
    counts: ClassVar[str] = "digits"
    name: Literal["sort"] = "sort"
    digits: int = Field(default=5, ge=2, le=10)
    """How many digits there are, from 0 on."""

    def draw(self, length: int, random: Random) -> Exercise:
        """Digits."""
        digits = drawn("0123456789"[: self.digits], length, random)
        return Exercise(digits, tuple(sorted(digits)))


class Addition(Task):
    """The sum of two decimal numbers, the highest digit first: `5 8 + 4 3` -> `1 0 1`."""

    source: ClassVar[str] = POSITIONAL_IMPACT
    counts: ClassVar[str] = "digits of each number"
    name: Literal["addition"] = "addition"
    lowest_first: bool = False
    """Numbers and sum from their lowest digit on, so that no digit depends on one that is still to come."""

    def draw(self, length: int, random: Random) -> Exercise:
        """Numbers without leading zeros."""
        first, second = (random.randrange(10 ** (length - 1), 10**length) for _ in range(2))
        written = [tuple(str(number)) for number in (first, second, first + second)]
        if self.lowest_first:
            written = [number[::-1] for number in written]
        return Exercise((*written[0], "+", *written[1]), written[2])


class BinaryAddition(Task):
    """The sum of two binary numbers, the lowest bit first: `1 0 + 1 1` -> `0 0 1`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "bits of each number"
    name: Literal["binary_addition"] = "binary_addition"

    def draw(self, length: int, random: Random) -> Exercise:
        """Numbers that may have high bits of 0."""
        first, second = random.getrandbits(length), random.getrandbits(length)
        return Exercise((*_bits(first, length), "+", *_bits(second, length)), _bits(first + second, length + 1))


class BinaryMultiplication(Task):
    """The product of two binary numbers, the lowest bit first: `1 1 * 0 1` -> `0 1 1 0`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "bits of each number"
    name: Literal["binary_multiplication"] = "binary_multiplication"

    def draw(self, length: int, random: Random) -> Exercise:
        """Numbers that may have high bits of 0."""
        first, second = random.getrandbits(length), random.getrandbits(length)
        return Exercise((*_bits(first, length), "*", *_bits(second, length)), _bits(first * second, 2 * length))


class SquareRoot(Task):
    """The square root of a binary number, rounded down, the highest bit first: `1 0 1 0` -> `1 1`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "bits"
    name: Literal["square_root"] = "square_root"

    def draw(self, length: int, random: Random) -> Exercise:
        """A number without leading zeros."""
        number = random.getrandbits(length) | 1 << (length - 1)
        return Exercise(tuple(f"{number:b}"), tuple(f"{math.isqrt(number):b}"))


def _bits(number: int, length: int) -> tuple[str, ...]:
    """So many bits, the lowest first."""
    return tuple(f"{number:0{length}b}"[::-1])
