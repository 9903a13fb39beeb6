"""Tiny corpora for the tests of this folder."""

import random
from pathlib import Path

from megatron_mep.data.config import DataConfig, Files, TrainTokenizer
from megatron_mep.data.corpus import prepare
from megatron_mep.data.manifest import Manifest

WORDS = ("the", "a", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "def", "return", "0", "1", "42", "été")


def silent(_: str) -> None:
    """A report that nobody reads."""


def stories(num_documents: int, seed: int = 0) -> list[str]:
    """Different documents of 1 to 60 words, on one line each."""
    draw = random.Random(seed)
    return [f"{number} " + " ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for number in range(num_documents)]


def settings(folder: Path, num_documents: int = 200) -> DataConfig:
    """A run file's section that prepares `stories` into `folder / "corpus"`."""
    text = folder / "stories.txt"
    text.write_text("\n".join(stories(num_documents)) + "\n", encoding="utf-8")
    return DataConfig(
        folder=str(folder / "corpus"),
        source=Files(kind="files", paths=(str(text),), one_document_per="line"),
        tokenizer=TrainTokenizer(vocab_size=320),
        validation_fraction=0.2,
    )


def corpus(folder: Path, num_documents: int = 200) -> tuple[Path, Manifest]:
    """A prepared corpus of `stories`."""
    data = settings(folder, num_documents)
    return Path(data.folder), prepare(data, report=silent)
