"""Passes over the documents of a source: once to train a tokenizer on them, once to write their tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path

from megatron_mep.data import tokenizer_training
from megatron_mep.data.census import Census
from megatron_mep.data.config import TrainTokenizer
from megatron_mep.data.documents import Source
from megatron_mep.data.manifest import TRAIN, VALIDATION, Split
from megatron_mep.data.progress import Progress
from megatron_mep.data.split_writer import SplitWriter
from megatron_mep.data.tokenizer import Tokenizer

# Encoded at once; memory holds a few times this, or the longest document.
_BATCH_CHARACTERS = 4_000_000


def train_tokenizer(
    source: Source, census: Census, options: TrainTokenizer, seed: int, report: Callable[[str], None]
) -> Tokenizer:
    """A tokenizer that has seen nothing of the validation split."""
    progress = Progress(report, "reading", source.total)

    def training_texts() -> Iterator[str]:
        for document in source.documents():
            split = census.place(document)
            if isinstance(document.text, str):
                progress.advance(1, len(document.text.encode()), document.position)
                if split == TRAIN:
                    yield document.text

    blocks = tokenizer_training.sample(training_texts(), options.max_bytes, seed)
    census.check()
    num_bytes = sum(len(block.encode()) for block in blocks)
    report(f"training a tokenizer of {options.vocab_size} tokens on {num_bytes / 1e6:.1f} MB of text")
    return tokenizer_training.train(blocks, options)


def write_splits(
    source: Source,
    census: Census,
    tokenizer: Tokenizer,
    folder: Path,
    num_threads: int,
    report: Callable[[str], None],
) -> tuple[Split, Split]:
    """Write the tokens of every document; what training and validation hold."""
    progress = Progress(report, "encoding", source.total)
    writers = {split: SplitWriter(folder / split, tokenizer) for split in (TRAIN, VALIDATION)}
    for batch, position in _batches(source, census):
        encoded = tokenizer.encode([text for _, text in batch], num_threads)
        num_bytes = 0
        for (split, text), tokens in zip(batch, encoded, strict=True):
            size = len(text.encode())
            writers[split].add(tokens, size)
            num_bytes += size
        progress.advance(len(batch), num_bytes, position)
    census.check()
    return writers[TRAIN].finish(), writers[VALIDATION].finish()


def _batches(source: Source, census: Census) -> Iterator[tuple[list[tuple[str, str]], int]]:
    """Texts with their splits, and the position in the source that they reach."""
    batch: list[tuple[str, str]] = []
    num_characters = position = 0
    for document in source.documents():
        split, text, position = census.place(document), document.text, document.position
        if split is None or not isinstance(text, str):
            continue
        batch.append((split, text))
        num_characters += len(text)
        if num_characters >= _BATCH_CHARACTERS:
            yield batch, position
            batch, num_characters = [], 0
    if batch:
        yield batch, position
