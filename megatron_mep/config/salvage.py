"""What can still be read of a tree with mistakes, so that rules between keys are checked in the same breath."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo

from megatron_mep.config.misspelt import misspellings, read_as_meant
from megatron_mep.config.place import Place, Tree, place_of, value_at

Section = TypeVar("Section", bound=BaseModel)

ROUNDS = 10
"""A repair can bring the next to light: a wrong value gone leaves its key missing, a section filled in needs keys."""


def salvage(section: type[Section], tree: Tree) -> Section | None:
    """The tree validated after each wrong value is put aside: misspelt keys are read as meant, required ones filled.

    Only for rules that read none of the wrong keys. `None` where nothing sensible is left.
    """
    tree = deepcopy(tree)
    for _ in range(ROUNDS):
        try:
            return section.model_validate(tree)
        except ValidationError as error:
            tree = _repaired(error, section, tree)
    return None


def _repaired(error: ValidationError, section: type[BaseModel], tree: Tree) -> Tree:
    misspelt = misspellings(error, section, tree)
    if misspelt:
        return read_as_meant(tree, misspelt)
    # from the last to the first: a part of a list that is put aside moves those behind it
    for details in reversed(error.errors(include_url=False)):
        place = place_of(details["loc"], section, tree)
        if details["type"] == "missing":
            _fill(place, tree)
        else:
            _put_aside(place.path, tree)
    return tree


def _fill(place: Place, tree: Tree) -> None:
    *above, last = place.path
    holder = value_at(tree, above)
    if isinstance(holder, dict):
        holder.setdefault(last, _filler(place))
    else:
        # a list too short
        _put_aside(above, tree)


def _put_aside(path: Sequence[int | str], tree: Tree) -> None:
    *above, last = path or ("",)
    holder = value_at(tree, above)
    if isinstance(holder, dict):
        holder.pop(last, None)
    elif isinstance(holder, list) and isinstance(last, int):
        del holder[last : last + 1]


def _filler(place: Place) -> Any:
    """A value that a required key accepts, and that no rule will read."""
    if place.sections:
        return {}
    field = place.holders[0].model_fields[str(place.path[-1])]
    return next(
        (value for value in (*get_args(field.annotation), 1, 2, "x", ["x"], [1]) if _accepts(field, value)), None
    )


def _accepts(field: FieldInfo, value: Any) -> bool:
    kind: Any = field.annotation
    try:
        create_model("Filled", value=(kind, field)).model_validate({"value": value})
    except ValidationError:
        return False
    return True
