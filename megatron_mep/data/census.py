"""Deals documents to training and validation, and counts them and those left out."""

import hashlib
from collections import Counter

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.documents import Document, Skip
from megatron_mep.data.manifest import TRAIN, VALIDATION


class Census:
    """Where each document of a source goes, told one after another in the source's order."""

    def __init__(self, seed: int, validation_fraction: float) -> None:
        """Nothing counted yet."""
        self._seed = seed
        self._validation_fraction = validation_fraction
        self._num_read = 0
        self._num_documents = {TRAIN: 0, VALIDATION: 0}
        self.skipped: Counter[str] = Counter()

    def place(self, document: Document) -> str | None:
        """The split of the next document, by a hash of seed and place; None for one that is left out."""
        index = self._num_read
        self._num_read += 1
        if isinstance(document.text, Skip):
            self.skipped[document.text.value] += 1
            return None
        digest = hashlib.blake2b(f"{self._seed}/{index}".encode(), digest_size=8).digest()
        held_out = int.from_bytes(digest, "big") < self._validation_fraction * 2**64
        split = VALIDATION if held_out else TRAIN
        self._num_documents[split] += 1
        return split

    def check(self) -> None:
        """Raise `DataError` where a split is empty, with what was read and what was left out."""
        if not any(self._num_documents.values()):
            skipped = ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())
            rule = f"must hold text: {self._num_read} documents read, none kept ({skipped or 'there are none'})"
            raise DataError(Mistake("data.source", None, rule, "correct its paths, its format or its column"))
        if not all(self._num_documents.values()):
            counts = " and ".join(f"{count} for {split}" for split, count in self._num_documents.items())
            rule = f"must leave documents to both splits, and leaves {counts}"
            remedy = "change it or the seed, or take more documents (text files: one_document_per: line)"
            raise DataError(Mistake("data.validation_fraction", self._validation_fraction, rule, remedy))
