"""Booleans that stand where numbers belong, which pydantic takes for 1 and 0."""

from collections.abc import Iterator
from typing import Any

from megatron_mep.config.errors import Mistake
from megatron_mep.config.place import Place


def taken_for_numbers(stated: Any, valid: Any, path: tuple[int | str, ...] = ()) -> Iterator[Mistake]:
    """Those of a tree, or of a part of it at a path, that became numbers in the section that it was validated as."""
    if isinstance(stated, dict):
        for key, value in stated.items():
            became = valid.get(key) if isinstance(valid, dict) else getattr(valid, key, None)
            yield from taken_for_numbers(value, became, (*path, key))
    elif isinstance(stated, list) and isinstance(valid, list | tuple):
        for index, (value, became) in enumerate(zip(stated, valid, strict=False)):
            yield from taken_for_numbers(value, became, (*path, index))
    elif isinstance(stated, bool) and isinstance(valid, int | float) and not isinstance(valid, bool):
        yield Mistake(Place(path, (), ()).key, stated, "must be a number", f"write one, {int(stated)} if it is meant")
