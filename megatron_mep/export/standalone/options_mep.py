"""What stands in an exported model for the classes that options are checked by: values are taken as they are.

An encoding's options were checked when its model was trained. So that a model needs torch and transformers alone,
pydantic does not come along; its names that encodings use are here, under which nothing is checked.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

PositiveInt = NonNegativeInt = PositiveFloat = NonNegativeFloat = Any


def Field(default: Any = ..., **_: Any) -> Any:  # noqa: N802
    """The default of an option."""
    return default


def field_validator(*_: str, **__: Any) -> Callable[[Function], Function]:
    """A decorator that changes nothing."""
    return _as_it_is


model_validator = field_validator


class Config:
    """Options by name, as annotated in the class and those below it."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(_defaults(type(self)) | options)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.__dict__.items())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.items()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} is fixed")

    @property
    def model_fields_set(self) -> set[str]:
        """The names of all options."""
        return set(self.__dict__)

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **options: Any) -> Self:
        """One with these options, and defaults for others."""
        return cls(**options)

    def model_copy(self, *, update: dict[str, Any] | None = None) -> Self:
        """The same with other values for some options."""
        return type(self)(**{**self.__dict__, **(update or {})})

    def model_dump(self, *, include: set[str] | None = None) -> dict[str, Any]:
        """The options by name, those in `include` alone if it is given."""
        return {name: value for name, value in self if include is None or name in include}


def _as_it_is(function: Function) -> Function:
    return function


def _defaults(kind: type[Config]) -> dict[str, Any]:
    annotated = [item for base in reversed(kind.__mro__) for item in inspect.get_annotations(base).items()]
    options = (name for name, annotation in annotated if "ClassVar" not in str(annotation))
    return {name: value for name in options if (value := getattr(kind, name, ...)) is not ...}
