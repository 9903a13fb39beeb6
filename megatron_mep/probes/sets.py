"""The questions of a probe: a set of samples for every task, length and depth, made once and kept."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal
from uuid import uuid4

from pydantic import ValidationError

from megatron_mep.config.base import Config
from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.formal.task import Task
from megatron_mep.probes.config import ProbesConfig
from megatron_mep.probes.material import Material, Tokens
from megatron_mep.probes.retrieval import Retrieval
from megatron_mep.probes.sample import Sample, UnfitLengthError

VERSION = 1
"""Of what tasks make; another number, and no set that was kept is used again."""


class _Kept(Config):
    """A set as it lies in a file."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class SampleSet:
    """Questions of one task, length and depth."""

    kind: Literal["retrieval", "formal"]
    task: Retrieval | Task
    length: int
    depth: float | None
    samples: tuple[Sample, ...]
    max_new_tokens: int | None
    """What generation gets; `None` where nothing is generated."""

    @property
    def options(self) -> dict[str, Any]:
        """Those of its task, as rows tell them."""
        return self.task.model_dump(mode="json", exclude={"name"})

    @property
    def hash(self) -> str:
        """SHA-256 in hexadecimal of all prompts and answers."""
        digest = hashlib.sha256()
        for sample in self.samples:
            digest.update(f"{sample.prompt} {sample.answer}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Cache:
    """Keeps sets in a folder, by everything that decides what they hold."""

    folder: Path | None
    """None: nothing is read or kept."""
    writes: bool = True
    """False on all ranks but one."""

    def get(self, key: str, make: Callable[[], tuple[Sample, ...]]) -> tuple[Sample, ...]:
        """The samples of a key, made where they are not there."""
        if self.folder is None:
            return make()
        file = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        try:
            return _Kept.model_validate_json(file.read_bytes()).samples
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            samples = make()
        if self.writes:
            self._keep(file, samples)
        return samples

    def _keep(self, file: Path, samples: tuple[Sample, ...]) -> None:
        beside = file.with_name(f".{uuid4().hex}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(_Kept(samples=samples).model_dump_json(), encoding="utf-8")
            beside.replace(file)
        except OSError as error:
            rule, remedy = f"must be writable: {error}", "set it to a folder that can be written"
            raise DataError(Mistake("data.index_folder", str(file.parent), rule, remedy)) from error


def sets_of(probes: ProbesConfig, train_length: int, material: Material, corpus: str, cache: Cache) -> list[SampleSet]:
    """All that a checkpoint is asked; a `DataError` tells every length at which something does not fit.

    Args:
        probes: The run file's section.
        train_length: Of the model.
        material: Of the corpus.
        corpus: The corpus's fingerprint; it tells the tokenizer too.
        cache: Where sets are kept.
    """
    mistakes: list[Mistake] = []
    sets = [*_retrieval(probes, train_length, material, corpus, cache, mistakes), *_formal(probes, material)]
    if mistakes:
        raise DataError(mistakes)
    if not sets:
        rule, remedy = "must name a task, or probes.formal.tasks must", "name one, for example [{name: passkey}]"
        raise DataError(Mistake("probes.retrieval.tasks", [], rule, remedy))
    return sets


def _retrieval(
    probes: ProbesConfig, train_length: int, material: Material, corpus: str, cache: Cache, mistakes: list[Mistake]
) -> Iterator[SampleSet]:
    section = probes.retrieval
    for task in section.tasks:
        for length in section.lengths_of(train_length):
            refusals: list[UnfitLengthError] = []
            for depth in section.depths if task.by_depth else (None,):
                key = f"{VERSION} {corpus} {task.model_dump_json()} {length} {depth} {section.samples} {probes.seed}"
                randoms = [Random(f"{probes.seed} {task.label} {depth} {number}") for number in range(section.samples)]
                try:
                    samples = cache.get(key, partial(_drawn, task, length, depth, material, randoms))
                except UnfitLengthError as refusal:
                    refusals.append(refusal)
                    continue
                mistakes += _budget_mistakes(task, samples)
                yield SampleSet("retrieval", task, length, depth, samples, task.max_new_tokens)
            if refusals:
                mistakes.append(_refused(task, length, _strictest(refusals)))


def _drawn(
    task: Retrieval, length: int, depth: float | None, material: Material, randoms: list[Random]
) -> tuple[Sample, ...]:
    """A sample of each source of random draws; where some do not fit, what all of them would need."""
    samples: list[Sample] = []
    refusals: list[UnfitLengthError] = []
    for random in randoms:
        try:
            samples.append(task.draw(material, length, depth, random))
        except UnfitLengthError as refusal:
            refusals.append(refusal)
    if refusals:
        raise _strictest(refusals)
    return tuple(samples)


def _strictest(refusals: list[UnfitLengthError]) -> UnfitLengthError:
    """The length that serves all."""
    least = max((refusal.least for refusal in refusals if refusal.least is not None), default=None)
    most = min((refusal.most for refusal in refusals if refusal.most is not None), default=None)
    return UnfitLengthError(least, most)


def _refused(task: Retrieval, length: int, refusal: UnfitLengthError) -> Mistake:
    needs = f"the {task.max_new_tokens} tokens that may be generated included"
    if refusal.least is not None:
        rule = f"must be at least {refusal.least} for {task.label}, {needs}"
        return Mistake("probes.retrieval.lengths", length, rule, f"leave it out, or set it to {refusal.least} or more")
    rule = f"must be at most {refusal.most} for {task.label}, {needs}: the validation split holds no more"
    return Mistake("probes.retrieval.lengths", length, rule, f"set it to {refusal.most} or less, or prepare more text")


def _budget_mistakes(task: Retrieval, samples: tuple[Sample, ...]) -> Iterator[Mistake]:
    """An answer that may not be generated whole could only be scored as wrong."""
    longest = max(len(sample.answer) for sample in samples)
    if longest > task.max_new_tokens:
        yield Mistake(f"probes.retrieval.tasks {task.label}: max_new_tokens", task.max_new_tokens,
                      f"must hold the longest answer, of {longest} tokens", f"set it to {longest} or more")  # fmt: skip


def _formal(probes: ProbesConfig, material: Material) -> Iterator[SampleSet]:
    """Exercises are quick to make: none are kept."""
    section = probes.formal
    for task in section.tasks:
        for length in section.lengths:
            random = Random(f"{probes.seed} probe {task.model_dump_json()} {length}")
            exercises = [task.draw(length, random) for _ in range(section.samples)]
            samples = tuple(
                _exercise(material, task.asked(exercise), task.answered(exercise), task.name) for exercise in exercises
            )
            yield SampleSet("formal", task, length, None, samples, None)


def _exercise(material: Material, asked: str, answered: str, name: str) -> Sample:
    """A document as it is trained on, after the end of another, cut where the answer begins."""
    end: Tokens = (material.tokenizer.eod,)
    question, document = material.encode(asked), material.encode(asked + answered)
    if document[: len(question)] != question:
        rule = "must not join the sign = with the symbol after it, so that a question can end there"
        remedy = f"train a tokenizer on a corpus of exercises: data.source.kind=formal with the task {name}"
        raise DataError(Mistake("data.tokenizer", None, rule, remedy))
    return Sample(prompt=end + question, answer=document[len(question) :] + end)
