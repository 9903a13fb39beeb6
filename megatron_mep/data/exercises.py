"""Exercises of length generalisation as documents to train on."""

from collections.abc import Iterator
from functools import partial
from random import Random

from megatron_mep.data.config import Formal
from megatron_mep.data.documents import Document, Source


def open_exercises(source: Formal) -> Source:
    """As many documents as the source says, its tasks in turn; they depend on its options alone."""
    return Source(source.documents, partial(_documents, source))


def _documents(source: Formal) -> Iterator[Document]:
    random = Random(f"{source.seed} training")
    for number in range(source.documents):
        task = source.tasks[number % len(source.tasks)]
        exercise = task.draw(random.randint(*source.lengths), random)
        yield Document(task.asked(exercise) + task.answered(exercise), position=number + 1)
