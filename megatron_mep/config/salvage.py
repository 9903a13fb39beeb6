"""What can still be read of a tree with mistakes, so that rules between keys are checked in the same breath."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from megatron_mep.config.explain import Location, Tree, misspelt, models_at, written

Section = TypeVar("Section", bound=BaseModel)

ROUNDS = 4
"""Removing a wrong value can leave a required key missing, and filling that in can open a nested section."""


def salvage(section: type[Section], tree: Tree) -> Section | None:
    """The tree validated after each wrong value is put aside: misspelt keys are read as meant, required ones filled.

    Only for rules that read none of the wrong keys. `None` where nothing sensible is left.
    """
    tree = deepcopy(tree)
    for _ in range(ROUNDS):
        try:
            return section.model_validate(tree)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                _put_aside(details["type"], details["loc"], section, tree)
    return None


def _put_aside(kind: str, location: Location, section: type[BaseModel], tree: Tree) -> None:
    path = written(location, tree)
    holder = _at(tree, path[:-1])
    if not path or not isinstance(holder, dict | list):
        return
    if kind == "missing" and isinstance(holder, dict):
        holder.setdefault(path[-1], _filler(section, location))
    elif kind == "extra_forbidden" and isinstance(holder, dict):
        meant = misspelt(location, section)
        value = holder.pop(path[-1], None)
        if meant is not None:
            holder.setdefault(meant, value)
    else:
        del holder[path[-1]]  # type: ignore[arg-type]


def _filler(section: type[BaseModel], location: Location) -> Any:
    """A value of a required key's type, that no rule will read."""
    for model in models_at(section, location):
        field = model.model_fields.get(str(location[-1]))
        if field is not None:
            kind = field.annotation
            return {} if isinstance(kind, type) and issubclass(kind, BaseModel) else "1" if kind is str else 1
    return 1


def _at(tree: Any, path: Sequence[int | str]) -> Any:
    for part in path:
        known = part in tree if isinstance(tree, dict) else isinstance(part, int) and part < len(tree)
        if not known:
            return None
        tree = tree[part]
    return tree
