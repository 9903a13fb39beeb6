"""All encodings that a run file can name, as one union."""

from importlib import import_module
from typing import Annotated, Any

from pydantic import Discriminator, SerializeAsAny, Tag, WrapValidator
from pydantic_core import PydanticCustomError

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope

BUILT_IN: tuple[type[Encoding], ...] = (Mep, Alibi, Rope, Nope)


def _tag(value: Any) -> str | None:
    """Which member of the union a value is for: its name, or `own` for a user's `module:Class`."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "own" if isinstance(name, str) and ":" in name else name


def _load_own(value: Any, _: object) -> Encoding:
    """An encoding of the user's own, named `module:Class` and found on the import path."""
    if isinstance(value, Encoding):
        return value
    module, _, attribute = value["name"].partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PydanticCustomError("own_encoding", "must be importable ({reason})", {"reason": str(error)}) from error
    if not (isinstance(kind, type) and issubclass(kind, Encoding)):
        raise PydanticCustomError("own_encoding", "must name a subclass of megatron_mep.encodings.base.Encoding")
    return kind.model_validate(value)


AnyEncoding = Annotated[
    Annotated[Mep, Tag("mep")]
    | Annotated[Alibi, Tag("alibi")]
    | Annotated[Rope, Tag("rope")]
    | Annotated[Nope, Tag("nope")]
    | Annotated[SerializeAsAny[Encoding], WrapValidator(_load_own), Tag("own")],
    Discriminator(_tag),
]
"""Chosen by `name`; a name with a colon is a class of the user's own."""
