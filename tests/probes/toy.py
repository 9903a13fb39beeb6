"""Material of a small corpus, and a model that copies: it finds what it has just read earlier in the text."""

from pathlib import Path

import torch
from torch import Tensor

from megatron_mep.data.corpus import prepare
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.validation import validation_tokens
from megatron_mep.probes.material import Material
from megatron_mep.probes.scoring import Read
from tests.data.toy import settings, silent

WORDS = ("apple", "bread", "chair", "dance", "eagle", "flute", "grape", "house", "input", "jewel", "knife", "lemon",
         "mouse", "night", "ocean", "piano")  # fmt: skip


def prepared(folder: Path) -> tuple[Material, Manifest]:
    """Of 300 documents, in which WORDS stand too."""
    data = settings(folder, 300)
    text = folder / "stories.txt"
    text.write_text(text.read_text(encoding="utf-8") + f"{' '.join(WORDS)}\n" * 100, encoding="utf-8")
    manifest = prepare(data, report=silent)
    corpus = Path(data.folder)
    return Material(Tokenizer.load(corpus / TOKENIZER), validation_tokens(corpus)), manifest


class Copying:
    """An induction head, and nothing else."""

    def __init__(self, vocabulary_size: int, order: int) -> None:
        self._vocabulary_size, self._order = vocabulary_size, order

    def __call__(self, batch_size: int, max_length: int) -> Read:
        before: list[list[int]] = [[] for _ in range(batch_size)]

        def read(tokens: Tensor, num_logits: int) -> Tensor:
            logits = torch.zeros(batch_size, num_logits, self._vocabulary_size)
            for row, new in enumerate(tokens.tolist()):
                before[row] += new
                assert len(before[row]) <= max_length
                for place in range(num_logits):
                    text = before[row][: len(before[row]) - num_logits + 1 + place]
                    logits[row, place, self._followed(text)] = 3.0
            return logits

        return read

    def _followed(self, text: list[int]) -> int:
        pattern = text[-self._order :]
        for end in range(len(text) - 1, self._order - 1, -1):
            if text[end - self._order : end] == pattern:
                return text[end]
        return 0
