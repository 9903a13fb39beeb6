"""An encoding of the user's own as a member of the unions that a run file chooses from by `name`."""

from typing import Annotated, Any

from pydantic import Discriminator, SerializeAsAny, Tag, ValidationError, WithJsonSchema, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from megatron_mep.config.union import OWN, own_class
from megatron_mep.encodings.base import Encoding


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

BY_NAME = Discriminator(_tag)
"""Chooses the member of a union; each is annotated with its name as its `Tag`."""

OwnEncoding = Annotated[SerializeAsAny[Encoding], WrapValidator(_load_own), _OWN_SCHEMA, Tag(OWN)]
"""The member that a name with a colon means."""
