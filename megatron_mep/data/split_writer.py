"""Writes one split of a corpus in Megatron's format: the tokens of its documents in `.bin`, their places in `.idx`."""

from pathlib import Path

import numpy as np
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from numpy.typing import NDArray

from megatron_mep.data.manifest import Split
from megatron_mep.data.tokenizer import Tokenizer


class SplitWriter:
    """Appends documents to `PREFIX.bin`; `finish` writes `PREFIX.idx`."""

    def __init__(self, prefix: Path, tokenizer: Tokenizer) -> None:
        """Begin an empty split."""
        self._prefix = prefix
        self._end_of_document = tokenizer.eod
        self._builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(tokenizer.vocab_size))
        self._num_documents = self._num_tokens = self._num_bytes = 0

    def add(self, tokens: NDArray[np.int32], num_bytes: int) -> None:
        """Append a document, and the token that ends it; `num_bytes` is the size of its text."""
        document = np.append(tokens, self._end_of_document)
        self._builder.add_document(document, [len(document)])
        self._num_documents += 1
        self._num_tokens += len(document)
        self._num_bytes += num_bytes

    def finish(self) -> Split:
        """Complete the files, and say what they hold."""
        self._builder.finalize(f"{self._prefix}.idx")
        return Split(num_documents=self._num_documents, num_tokens=self._num_tokens, num_bytes=self._num_bytes)
