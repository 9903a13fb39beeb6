"""Sections that come in several kinds: which key chooses one, and classes of the user's own among them."""

from importlib import import_module
from inspect import isabstract
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from megatron_mep.config.base import Config

Kind = TypeVar("Kind", bound=Config)

CHOOSERS = ("kind", "kernel", "name")
"""The keys that choose a member of a union; where a section has two of them, the first chooses."""

OWN = "module:Class"
"""The tag of the member that a class of the user's own is, and how its name is written."""


def choices(member: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """What a union's member is chosen by: the key, and the values that mean it."""
    for chooser in CHOOSERS:
        if chooser in member.model_fields:
            values = get_args(member.model_fields[chooser].annotation)
            return {chooser: tuple(map(str, values)) or (OWN,)}
    return {}


def other_member(below: dict[str, Any], above: dict[str, Any]) -> bool:
    """Whether `above` chooses another member of a union than `below`, whose options then mean nothing."""
    chooser = next((key for key in CHOOSERS if key in below), None)
    return chooser in above and above[chooser] != below[chooser]


def own_class(name: str, base: type[Kind]) -> type[Kind]:
    """The user's class `module:Class`, found on the import path; a `ValueError` says `rule; remedy` where it is not."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ValueError(f"must be written {OWN}; for example my_encodings:Mine")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"must be importable ({error}); correct it, or put its folder on PYTHONPATH") from error
    if not (isinstance(found, type) and issubclass(found, base)) or isabstract(found):
        raise ValueError(f"must name a subclass of {base.__name__} without abstract methods; correct the class")
    return found
