"""Tasks of which no single place holds the answer: variables to be followed, and words to be counted."""

from random import Random
from string import ascii_uppercase
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from megatron_mep.probes.haystack import haystack
from megatron_mep.probes.material import Material, Tokens
from megatron_mep.probes.retrieval import Retrieval, listed
from megatron_mep.probes.sample import Sample, UnfitLengthError

RULER = "RULER, arXiv:2404.06654, section 3"


class VariableTracking(Retrieval):
    """Variables that hold one number, the first directly, each other as a copy of the one before it."""

    source: ClassVar[str] = RULER
    name: Literal["variable_tracking"] = "variable_tracking"
    max_new_tokens: int = Field(default=48, gt=0)
    """Tokens that greedy generation gets for its answer; they are part of the length."""
    chains: int = Field(default=1, gt=0)
    """Numbers, each with variables of its own; the first is asked for."""
    hops: int = Field(default=4, gt=0)
    """Copies in a chain."""

    def draw(self, material: Material, length: int, depth: float | None, random: Random) -> Sample:  # noqa: ARG002
        """Chains in order, their links anywhere in the text."""
        names = _names(self.chains * (self.hops + 1), random)
        numbers = random.sample(range(10_000, 100_000), self.chains)
        needles = []
        for chain, number in enumerate(numbers):
            of_chain = names[chain :: self.chains]
            values = [str(number), *(f"VAR {name}" for name in of_chain)]
            links = [f"\nVAR {name} = {value}\n" for name, value in zip(of_chain, values, strict=False)]
            places = sorted(random.random() for _ in links)
            needles += [(place, material.encode(link)) for place, link in zip(places, links, strict=True)]
        wanted = tuple(names[:: self.chains])
        question = material.encode(
            f"\nFind all variables that are assigned the value {numbers[0]} in the text above. They are"
        )
        prompt = haystack(material, needles, question, length, self.max_new_tokens, random)
        return Sample(prompt=prompt, answer=listed(material, wanted), wanted=wanted)


class CommonWords(Retrieval):
    """A list of words in random order, few of which come often; RULER has 10 common words, 30 times and 3 times."""

    source: ClassVar[str] = RULER
    name: Literal["common_words"] = "common_words"
    common: int = Field(default=4, gt=0)
    """Words that come often."""
    times: int = Field(default=8, gt=1)
    """How often they come."""
    rare_times: int = Field(default=2, gt=0)
    """How often each of the others comes, of which there are as many as the length takes."""

    @model_validator(mode="after")
    def _common_words_come_more_often(self) -> Self:
        if self.rare_times >= self.times:
            raise ValueError(f"rare_times={self.rare_times} must be less than times={self.times}")
        return self

    def draw(self, material: Material, length: int, depth: float | None, random: Random) -> Sample:  # noqa: ARG002
        """The list is as long as fits."""
        words = material.words_for(self.name, self.common + 1)
        words = tuple(random.sample(words, len(words)))
        question = material.encode(f"\nThe {self.common} most common words in the list above are")
        room = length - self.max_new_tokens - len(question)
        spelt = {word: material.encode(f" {word}") for word in words}
        chosen = dict.fromkeys(words[: self.common], self.times)
        needed = self.times * sum(len(spelt[word]) for word in chosen)
        least = needed + self.rare_times * len(spelt[words[self.common]])
        if least > room:
            raise UnfitLengthError(least=length - room + least)
        most = needed + self.rare_times * sum(len(spelt[word]) for word in words[self.common :])
        if room > most:
            raise UnfitLengthError(most=length - room + most)
        for word in words[self.common :]:
            needed += self.rare_times * len(spelt[word])
            if needed > room:
                break
            chosen[word] = self.rare_times
        wanted = words[: self.common]
        return Sample(
            prompt=_shuffled(chosen, spelt, random) + question, answer=listed(material, wanted), wanted=wanted
        )


class FrequentWords(Retrieval):
    """Words as frequent as Zipf's law has them: the one of rank k comes in proportion to k^-exponent."""

    source: ClassVar[str] = RULER
    name: Literal["frequent_words"] = "frequent_words"
    exponent: float = Field(default=2.0, gt=1)
    """How fast frequency falls with the rank."""
    asked: int = Field(default=3, gt=0)
    """How many of the most frequent words are asked for."""

    def draw(self, material: Material, length: int, depth: float | None, random: Random) -> Sample:  # noqa: ARG002
        """The list is as long as fits."""
        words = material.words_for(self.name, self.asked + 1)
        words = tuple(random.sample(words, len(words)))
        question = material.encode(f"\nThe {self.asked} most frequent words in the list above are")
        spelt = {word: material.encode(f" {word}") for word in words}
        beside = len(question) + self.max_new_tokens
        times = 1
        while self._ties(self._counts(words, times)):
            times += 1
        least = beside + _size(self._counts(words, times), spelt)
        if least > length:
            raise UnfitLengthError(least=least)
        step = length
        while step:
            # the largest list that fits, by halving steps: its size grows with the times of the first word
            grown = self._counts(words, times + step)
            if beside + _size(grown, spelt) <= length and not self._ties(grown):
                times += step
            else:
                step //= 2
        wanted = words[: self.asked]
        prompt = _shuffled(self._counts(words, times), spelt, random) + question
        return Sample(prompt=prompt, answer=listed(material, wanted), wanted=wanted)

    def _counts(self, words: tuple[str, ...], times: int) -> dict[str, int]:
        """How often each word comes when the first comes so many times."""
        counts: dict[str, int] = {}
        for rank, word in enumerate(words, start=1):
            count = int(times * rank**-self.exponent)
            if count == 0:
                break
            counts[word] = count
        return counts

    def _ties(self, counts: dict[str, int]) -> bool:
        """Whether the question has no single answer in one order."""
        asked = [*counts.values(), 0][: self.asked + 1]
        return len(set(asked)) < self.asked + 1


def _names(count: int, random: Random) -> list[str]:
    """Different names of five capital letters."""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(random.choices(ascii_uppercase, k=5))] = None
    return list(names)


def _size(counts: dict[str, int], spelt: dict[str, Tokens]) -> int:
    return sum(times * len(spelt[word]) for word, times in counts.items())


def _shuffled(counts: dict[str, int], spelt: dict[str, Tokens], random: Random) -> Tokens:
    """The tokens of a list in which each word comes so many times."""
    every = [word for word, times in counts.items() for _ in range(times)]
    random.shuffle(every)
    return tuple(token for word in every for token in spelt[word])
