"""Random symbols, stretches of which come again, as documents to train on."""

import math
from collections.abc import Iterator
from functools import partial
from random import Random

from megatron_mep.data.config import Copies
from megatron_mep.data.documents import Document, Source


def open_copies(source: Copies) -> Source:
    """As many documents as the source says; they depend on its options alone."""
    return Source(source.documents, partial(_documents, source))


def _documents(source: Copies) -> Iterator[Document]:
    random = Random(f"{source.seed} copies")
    for number in range(source.documents):
        yield Document(_document(source, random), position=number + 1)


def _document(source: Copies, random: Random) -> str:
    """Fresh symbols and copies in turn; a copy looks back at all that is written, earlier copies included."""
    number = _even_by_logarithm(source.fewest, len(source.symbols), random)
    symbols = random.sample(source.symbols, number)
    written: list[str] = []
    while len(written) < source.length:
        written += random.choices(symbols, k=random.randint(*source.fresh))
        distance = _even_by_logarithm(*source.distance, random)
        if distance <= len(written):
            for _ in range(random.randint(*source.copied)):
                written.append(written[-distance])
    return "".join(written[: source.length])


def _even_by_logarithm(least: int, most: int, random: Random) -> int:
    """A whole number from the least to the most, in proportion to 1 / n."""
    return min(most, math.floor(least * ((most + 1) / least) ** random.random()))
