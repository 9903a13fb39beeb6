"""What a length trick is: a change of a trained encoding, made for evaluation alone."""

from abc import ABC, abstractmethod
from typing import ClassVar

from megatron_mep.config.base import Config
from megatron_mep.encodings.base import Encoding


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
        """Why it cannot act on an encoding, as a rule: `must ...`, `needs ...`; `None` where it can."""

    @abstractmethod
    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The encoding that evaluation uses in place of a trained one.

        It declares the weights of the trained one under the same names, so that checkpoints fit, and is named
        `encoding + trick`.
        """
