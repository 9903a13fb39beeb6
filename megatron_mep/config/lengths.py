"""Lengths at which something is measured, as a run file states them."""

from typing import Annotated

from pydantic import AfterValidator, Field

Length = Annotated[int, Field(gt=1)]
"""Tokens of a window."""


def _ascending(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if list(lengths) != sorted(set(lengths)):
        raise ValueError(f"must ascend without repetition; write {sorted(set(lengths))}")
    return lengths


Lengths = Annotated[tuple[Length, ...], Field(min_length=1), AfterValidator(_ascending)]
"""Each once, the shortest first."""
