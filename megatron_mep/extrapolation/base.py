"""What a length trick is: a change of a trained encoding, made for evaluation alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import new_class
from typing import Any, ClassVar, TypeVar, cast

from megatron_mep.config.base import Config
from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import Encoding

Kind = TypeVar("Kind", bound=Encoding)


class Remarked(ABC):
    """Mixed into an encoding of which the line at start-up says more than its name."""

    @abstractmethod
    def remark(self, head_size: int) -> str:
        """What it says, in brackets."""


class Trick(Config, ABC):
    """A change of a trained model's encoding, so that it reads further than it was trained to."""

    name: str
    """Chooses the trick."""
    source: ClassVar[str]
    """Where it is from: paper and equation, or what was reconstructed from what."""
    formula: ClassVar[str]
    """One line for tables."""

    @abstractmethod
    def against(self, encoding: Encoding) -> str | None:
        """Why it cannot act on an encoding, as a rule: `must ...`, `needs ...`; `None` where it can.

        It reads no option that must be stated.
        """

    def mistakes(self, train_length: int) -> list[Mistake]:  # noqa: ARG002
        """What its options have against a training length; the keys are its own options."""
        return []

    @abstractmethod
    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The encoding that evaluation uses in place of a trained one.

        It declares the weights of the trained one under the same names, so that checkpoints fit, and is named
        `encoding + trick`.
        """


def changed(encoding: Kind, trick: Trick, *also: type[Any], **methods: Callable[..., Any]) -> Kind:
    """An encoding of the same kind, options and weights, named `encoding + trick`, some of whose methods are others.

    Args:
        encoding: The trained one, which stays as it is.
        trick: What changes it.
        also: What the changed one is besides, such as another kind of encoding.
        methods: By their names, functions of the changed encoding and the method's arguments. Each may call the method
            that it replaces on the trained encoding, and no other there: a later trick may have replaced that one.
    """
    before = type(encoding)
    name = f"{encoding.name} + {trick.name}"
    members = {
        "__module__": __name__,
        "__doc__": f"{before.__name__} under {trick.name}.",
        "__annotations__": {"name": str, "methods_of_tricks": ClassVar[frozenset[str]]},
        "methods_of_tricks": replaced(encoding) | methods.keys(),
        **methods,
    }
    after: type[Encoding] = new_class(before.__name__, (before, *also), exec_body=lambda body: body.update(members))
    values = dict(encoding) | {"name": name}
    return cast(Kind, after.model_construct(encoding.model_fields_set, **values))


def replaced(encoding: Encoding) -> frozenset[str]:
    """The methods of an encoding that tricks have replaced."""
    return getattr(encoding, "methods_of_tricks", frozenset())
