"""Keys that nobody knows and that resemble one, and the tree as it was meant."""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from megatron_mep.config.place import Place, Tree, place_of, value_at


@dataclass(frozen=True)
class Misspelling:
    """An unknown key whose meaning can be guessed."""

    place: Place
    meant: str
    value: Any


def misspellings(error: ValidationError, section: type[BaseModel], tree: Tree) -> list[Misspelling]:
    """The unknown keys that resemble a known one which is not stated, each known one guessed once."""
    found: dict[tuple[int | str, ...], Misspelling] = {}
    for place in _unknown(error, section, tree):
        holder = value_at(tree, place.path[:-1])
        meant = most_alike(str(place.path[-1]), place.known_keys)
        if meant is not None and meant not in holder:
            found.setdefault((*place.path[:-1], meant), Misspelling(place, meant, holder[place.path[-1]]))
    return list(found.values())


def read_as_meant(tree: Tree, misspelt: Iterable[Misspelling]) -> Tree:
    """The tree with known keys in the place of misspelt ones."""
    tree = deepcopy(tree)
    for one in misspelt:
        holder = value_at(tree, one.place.path[:-1])
        holder[one.meant] = holder.pop(one.place.path[-1])
    return tree


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`did you mean 'x'?`, or all that is known where nothing is alike."""
    alike = most_alike(word, known)
    return f"did you mean {alike!r}?" if alike else f"use one of {', '.join(known)}"


def most_alike(word: str, known: Sequence[str]) -> str | None:
    """The known word that resembles it most, if any does."""
    return next(iter(get_close_matches(word, known, n=1, cutoff=0.6)), None)


def _unknown(error: ValidationError, section: type[BaseModel], tree: Tree) -> Iterator[Place]:
    """The places of unknown keys; in a union without a choice, of those that no member of it knows."""
    for details in error.errors(include_url=False):
        place = place_of(details["loc"], section, tree)
        if details["type"] == "extra_forbidden":
            yield place
        elif details["type"] == "union_tag_not_found" and isinstance(details["input"], dict):
            yield from (place.below(str(key)) for key in details["input"] if key not in place.keys)
