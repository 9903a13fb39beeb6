"""Texts that are read together: those of one length, so that none is padded."""

from collections.abc import Iterable, Iterator
from itertools import groupby

Tokens = tuple[int, ...]


def batches(texts: Iterable[Tokens], batch_tokens: int, num_more: int = 0) -> Iterator[list[Tokens]]:
    """Batches of texts of one length each, the longest first, as many as fit, at least one.

    Args:
        texts: In any order.
        batch_tokens: Tokens of a batch.
        num_more: Tokens that are to follow each text.
    """
    for length, alike in groupby(sorted(texts, key=len, reverse=True), key=len):
        size = max(1, batch_tokens // (length + num_more))
        ordered = list(alike)
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]
