"""What probes are made of: held-out text, its words, and the tokenizer."""

import re
from collections import Counter
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.tokenizer import Tokenizer

Tokens = tuple[int, ...]

_MOST_TEXT = 2**24
_MOST_READ_FOR_WORDS = 2**22
_MOST_WORDS = 20_000
_WORD = re.compile(r"[^\W\d_]{3,12}")


class Material:
    """Held-out text as one stream of tokens; a line ends where a document does, after which a model might forget."""

    def __init__(self, tokenizer: Tokenizer, stream: NDArray[np.integer]) -> None:
        """`stream` holds tokens of documents, each with its end; of more than 2^24 the first are taken."""
        self.tokenizer = tokenizer
        taken = stream[:_MOST_TEXT]
        self.text = np.where(taken == tokenizer.eod, self.encode("\n")[-1], taken)

    def encode(self, text: str) -> Tokens:
        """The tokens of a part of a prompt, cut by itself: what a model is to repeat then has the same tokens twice."""
        return tuple(self.tokenizer.encode([text])[0].tolist())

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of 3 to 12 letters that the text holds, the most frequent first, no two alike but for their case."""
        found = _WORD.findall(self.tokenizer.decode(self.text[:_MOST_READ_FOR_WORDS]))
        return tuple(word for word, _ in Counter(word.lower() for word in found).most_common(_MOST_WORDS))

    def words_for(self, task: str, count: int) -> tuple[str, ...]:
        """The words, of which a task needs so many."""
        if len(self.words) < count:
            rule = f"must hold {count} different words of 3 to 12 letters for {task}, and holds {len(self.words)}"
            remedy = f"leave {task} out of probes.retrieval.tasks, or prepare more text"
            raise DataError(Mistake("data.folder", None, rule, remedy))
        return self.words
