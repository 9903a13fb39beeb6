"""All encodings that a run file can name, as one union."""

from typing import Annotated, Any

from pydantic import Discriminator, SerializeAsAny, Tag, ValidationError, WithJsonSchema, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from megatron_mep.config.union import OWN, own_class
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope

BUILT_IN: tuple[type[Encoding], ...] = (Mep, Alibi, Rope, Nope)


def _tag(value: Any) -> str | None:
    """Which member of the union a value is for: its name, or `OWN` for a user's `module:Class`."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if name is None else OWN if ":" in str(name) else str(name)


def _load_own(value: Any, _: object) -> Encoding:
    """An encoding of the user's own, named `module:Class` and found on the import path."""
    if isinstance(value, Encoding):
        return value
    try:
        kind = own_class(str(value["name"]), Encoding)
    except ValueError as error:
        told = PydanticCustomError("own_encoding", "{reason}", {"reason": str(error)})
        at_name = InitErrorDetails(type=told, loc=("name",), input=value["name"])
        raise ValidationError.from_exception_data("encoding", [at_name]) from error
    return kind.model_validate(value)


_OWN_SCHEMA = WithJsonSchema(
    {
        "type": "object",
        "title": "An encoding of your own",
        "properties": {"name": {"type": "string", "pattern": ":", "description": "`module:Class`, importable."}},
        "required": ["name"],
    }
)

AnyEncoding = Annotated[
    Annotated[Mep, Tag("mep")]
    | Annotated[Alibi, Tag("alibi")]
    | Annotated[Rope, Tag("rope")]
    | Annotated[Nope, Tag("nope")]
    | Annotated[SerializeAsAny[Encoding], WrapValidator(_load_own), _OWN_SCHEMA, Tag(OWN)],
    Discriminator(_tag),
]
"""Chosen by `name`; a name with a colon is a class of the user's own."""
