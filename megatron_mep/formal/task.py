"""What a task of length generalisation is: exercises of any length, each a question with one right answer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from megatron_mep.config.base import Config

NEURAL_CHOMSKY = "Neural Networks and the Chomsky Hierarchy, arXiv:2207.02098"
POSITIONAL_IMPACT = "The Impact of Positional Encoding on Length Generalization in Transformers, arXiv:2305.19466"


@dataclass(frozen=True)
class Exercise:
    """A question and its answer, in symbols without spaces; the answer may be empty."""

    question: tuple[str, ...]
    answer: tuple[str, ...]


class Task(Config, ABC):
    """Exercises that one rule answers, however long they are."""

    source: ClassVar[str]
    counts: ClassVar[str]
    """What a length is a number of."""

    name: str

    @abstractmethod
    def draw(self, length: int, random: Random) -> Exercise:
        """An exercise of a length of at least 1."""

    def asked(self, exercise: Exercise) -> str:
        """The text that an answer is to follow."""
        return f"{self.name}: {' '.join(exercise.question)} ="

    def answered(self, exercise: Exercise) -> str:
        """The text of the answer, a space before each symbol; then the document ends."""
        return "".join(f" {symbol}" for symbol in exercise.answer)


def drawn(symbols: str, length: int, random: Random) -> tuple[str, ...]:
    """So many symbols, each as likely as the others."""
    return tuple(random.choices(symbols, k=length))
