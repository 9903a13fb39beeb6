"""Where pydantic found something wrong, read along the sections and along what the user wrote."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from megatron_mep.config.base import Config
from megatron_mep.config.union import OWN, choices, own_class

Location = Sequence[int | str]
Tree = dict[str, Any]
Sections = tuple[type[BaseModel], ...]


@dataclass(frozen=True)
class Place:
    """A place in a tree, and what may stand there."""

    path: tuple[int | str, ...]
    """The keys and indices down to it, as in the file."""
    holders: Sections
    """The sections that its last key belongs to."""
    sections: Sections
    """The sections that may stand there: none for a plain value, several for a union."""

    @property
    def key(self) -> str:
        """The path as a dotted key, `model.encoding.kernels[1].width`."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).lstrip(".")

    @property
    def last_key(self) -> str:
        """Its last key, which holds the list where the place is an item of one."""
        return next((part for part in reversed(self.path) if isinstance(part, str)), "")

    @property
    def known_keys(self) -> list[str]:
        """What its last key may be."""
        return _keys_of(self.holders)

    @property
    def keys(self) -> list[str]:
        """What may be stated in the section that stands here."""
        return _keys_of(self.sections)

    def below(self, key: str) -> "Place":
        """The place of a key in the section that stands here."""
        under = [found for section in self.sections for found in sections_under(section, key)]
        return Place((*self.path, key), self.sections, tuple(under))


def place_of(location: Location, section: type[BaseModel], tree: Any) -> Place:
    """The place of pydantic's location, which also names the member of a union as no file does."""
    place = Place((), (), (section,))
    for part in location:
        if isinstance(part, int):
            place = Place((*place.path, part), place.holders, place.sections)
        elif len(place.sections) > 1:
            place = Place(place.path, place.holders, _members(place, part, tree))
        else:
            place = place.below(part)
    return place


def sections_under(section: type[BaseModel], key: str) -> Sections:
    """The sections that may stand under a key of another, or in the list there."""
    field = section.model_fields.get(key)
    return tuple(_sections_in(field.annotation)) if field else ()


def value_at(tree: Any, path: Sequence[int | str]) -> Any:
    """What stands at a path, or `None`."""
    for part in path:
        holds = part in tree if isinstance(tree, dict) else isinstance(part, int) and part < len(tree)
        if not holds:
            return None
        tree = tree[part]
    return tree


def _keys_of(sections: Sections) -> list[str]:
    return [key for section in sections for key in section.model_fields]


def _members(place: Place, tag: str, tree: Any) -> Sections:
    """The member of a union that a tag means."""
    members = tuple(member for member in place.sections if any(tag in values for values in choices(member).values()))
    if tag != OWN:
        return members
    stated = value_at(tree, place.path)
    try:
        return tuple(own_class(stated[chooser], Config) for member in members for chooser in choices(member))
    except ValueError:
        return members


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections_in(inner)
