"""Retrieval tasks: what a base class asks of them, the passkey, and needles in a haystack."""

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from megatron_mep.config.base import Config
from megatron_mep.probes.haystack import Needle, haystack
from megatron_mep.probes.material import Material, Tokens
from megatron_mep.probes.sample import Sample


class Retrieval(Config, ABC):
    """Questions whose answers stand in a long text."""

    source: ClassVar[str]

    name: str
    max_new_tokens: int = Field(default=32, gt=0)
    """Tokens that greedy generation gets for its answer; they are part of the length."""

    @property
    def by_depth(self) -> bool:
        """Whether what is asked for stands in one place, which can be chosen."""
        return False

    @abstractmethod
    def draw(self, material: Material, length: int, depth: float | None, random: Random) -> Sample:
        """A sample whose prompt and `max_new_tokens` together have at most `length` tokens; or `UnfitLengthError`."""

    @property
    def label(self) -> str:
        """The name, with every option that is not its default."""
        options = self.model_dump(exclude={"name"}, exclude_defaults=True)
        return " ".join([self.name, *(f"{option}={value}" for option, value in options.items())])


class Passkey(Retrieval):
    """A number of five digits, said twice in one place of the text."""

    source: ClassVar[str] = "Landmark Attention, arXiv:2305.16300, section 4.2; wording ours, shorter"
    name: Literal["passkey"] = "passkey"
    max_new_tokens: int = Field(default=12, gt=0)
    """Tokens that greedy generation gets for its answer; they are part of the length."""

    @property
    def by_depth(self) -> bool:
        """The place of the key."""
        return True

    def draw(self, material: Material, length: int, depth: float | None, random: Random) -> Sample:
        """The key at a depth, which is a share of the text."""
        assert depth is not None, "the key stands at a depth"
        key = str(random.randrange(10_000, 100_000))
        answer = material.encode(f" {key}")
        parts = (material.encode("\nThe pass key is"), answer, material.encode(". Remember it.\n"))
        question = material.encode("\nWhat is the pass key? The pass key is")
        needles = [(depth, tuple(token for part in parts for token in part))]
        prompt = haystack(material, needles, question, length, self.max_new_tokens, random)
        return Sample(prompt=prompt, answer=answer, wanted=(key,))


class Needles(Retrieval):
    """Needles in a haystack: words with their numbers, of which some are asked for.

    As it stands a single needle. With more keys than queries the others distract (multi-key); with more values each
    key has so many needles (multi-value); with more queries so many keys are asked for at once (multi-query).
    """

    source: ClassVar[str] = "RULER, arXiv:2404.06654, section 3"
    name: Literal["needles"] = "needles"
    max_new_tokens: int = Field(default=48, gt=0)
    """Tokens that greedy generation gets for its answer; they are part of the length."""
    keys: int = Field(default=1, gt=0)
    """Words that have numbers."""
    values: int = Field(default=1, gt=0)
    """Numbers of each word."""
    queries: int = Field(default=1, gt=0)
    """Words that are asked for."""
    digits: int = Field(default=7, gt=1)
    """Digits of a number."""

    @model_validator(mode="after")
    def _queries_have_needles(self) -> Self:
        if self.queries > self.keys:
            raise ValueError(f"queries={self.queries} must not exceed keys={self.keys}")
        return self

    @property
    def by_depth(self) -> bool:
        """Only where one number is asked for; the others lie anywhere."""
        return self.values * self.queries == 1

    def draw(self, material: Material, length: int, depth: float | None, random: Random) -> Sample:
        """The needle that is asked for at the depth, where there is one alone."""
        words = random.sample(material.words_for(self.name, self.keys), self.keys)
        asked = words[: self.queries]
        owners = random.sample(words * self.values, self.keys * self.values)
        pairs = [(owner, str(random.randrange(10 ** (self.digits - 1), 10**self.digits))) for owner in owners]
        places = sorted(random.random() for _ in pairs)
        if self.by_depth:
            assert depth is not None, "the needle stands at a depth"
            places[owners.index(asked[0])] = depth
        needles = [self._needle(material, *pair, place) for pair, place in zip(pairs, places, strict=True)]
        wanted = tuple(number for word in asked for owner, number in pairs if owner == word)
        question = material.encode(self._question(asked))
        prompt = haystack(material, needles, question, length, self.max_new_tokens, random)
        return Sample(prompt=prompt, answer=listed(material, wanted), wanted=wanted)

    def _needle(self, material: Material, word: str, number: str, place: float) -> Needle:
        parts = (f"\nOne of the special magic numbers for {word} is", f" {number}", ".\n")
        return place, tuple(token for part in parts for token in material.encode(part))

    def _question(self, words: list[str]) -> str:
        of = " and ".join(words)
        if self.by_depth:
            return f"\nWhat is the special magic number for {of}? One of the special magic numbers for {of} is"
        return f"\nWhat are all the special magic numbers for {of}? The special magic numbers for {of} are"


def listed(material: Material, words: tuple[str, ...]) -> Tokens:
    """Words one after the other, as an answer lists them: ` one, two, three`."""
    tokens: list[int] = []
    for word in words:
        tokens += material.encode(f" {word}") if not tokens else (*material.encode(","), *material.encode(f" {word}"))
    return tuple(tokens)
