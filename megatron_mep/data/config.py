"""The `data` section of a run file: which text, which tokenizer, and where the prepared corpus lies."""

from string import ascii_letters, digits
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from megatron_mep.config.base import Config
from megatron_mep.formal import AnyFormalTask


def _ascending(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"must be the least and the most; write [{bounds[1]}, {bounds[0]}]")
    return bounds


Range = Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], AfterValidator(_ascending)]
"""The least and the most of what is drawn, all numbers from the one to the other being equally frequent."""


class PythonStandardLibrary(Config):
    """The source files of the running Python's standard library: a corpus that every machine has, offline."""

    kind: Literal["python_standard_library"] = "python_standard_library"
    max_bytes: int | None = Field(default=None, gt=0)
    """Take files, in an order that depends on their names alone, up to this many bytes. None: all of them."""


class Files(Config):
    """Text, JSON lines or Parquet files on disk, plain or compressed (`.gz`, `.bz2`, `.xz`, `.zst`)."""

    kind: Literal["files"]
    paths: tuple[str, ...] = Field(min_length=1)
    """Paths and glob patterns (`**` crosses folders), relative to the current directory."""
    format: Literal["text", "jsonl", "parquet"] | None = None
    """What the files hold. None: each file's suffix says it."""
    column: str = "text"
    """Where a JSON line or a Parquet row holds its text. Text files have none."""
    one_document_per: Literal["file", "line"] = "file"
    """How a text file falls into documents. A JSON line or a Parquet row is always one document."""


class Hub(Config):
    """A dataset of the Hugging Face hub, or a folder that `datasets.load_dataset` reads."""

    kind: Literal["hub"]
    name: str
    """`owner/dataset`, or a folder."""
    subset: str | None = None
    """The dataset's configuration. None: its only one."""
    split: str = "train"
    """A split, or a slice of one: `train[:1%]`."""
    revision: str | None = None
    """The branch, tag or commit. None: the newest."""
    column: str = "text"
    """The column that holds the text."""


class Formal(Config):
    """Exercises of length generalisation, each a document: a question of a task and its answer."""

    kind: Literal["formal"]
    tasks: tuple[AnyFormalTask, ...] = Field(min_length=1)
    """Which tasks; a document is of each of them equally often."""
    lengths: Range = (1, 40)
    """Lengths of the exercises, in what each task counts."""
    documents: int = Field(default=100_000, gt=0)
    """How many exercises; short ones may come more than once."""
    seed: int = Field(default=0, ge=0)
    """Decides what they ask."""


class Copies(Config):
    """Symbols drawn at random, stretches of which come again: only a model that finds and copies can foretell any.

    What it learns is induction: it looks for what it has just read, and copies what followed there. After the test of
    "In-context Learning and Induction Heads", arXiv:2209.11895, which repeats a stretch of random tokens.
    """

    kind: Literal["copies"]
    symbols: tuple[Annotated[str, Field(min_length=1)], ...] = tuple(ascii_letters + digits + " .,?\n")
    """What documents are made of, one put after the other: characters, or words with the space before them."""
    fewest: int = Field(default=8, ge=2)
    """A document has from so many up to all of the symbols, evenly by the logarithm of their number. The fewer they
    are, the more must be read to tell the one place that is copied from others that begin alike."""
    documents: int = Field(default=4000, gt=0)
    """How many documents."""
    length: int = Field(default=1024, gt=0)
    """Symbols of a document."""
    fresh: Range = (2, 8)
    """Symbols drawn between two copies."""
    copied: Range = (8, 32)
    """Symbols of a copy; one that is longer than its distance repeats itself."""
    distance: Range = (4, 96)
    """How many symbols back a copy looks, evenly by their logarithm: as often from 4 to 8 as from 40 to 80."""
    seed: int = Field(default=0, ge=0)
    """Decides what is drawn."""

    @model_validator(mode="after")
    def _symbols_suffice(self) -> Self:
        if len(set(self.symbols)) < len(self.symbols):
            raise ValueError("symbols must be different ones")
        if self.fewest > len(self.symbols):
            raise ValueError(f"fewest={self.fewest} must be at most {len(self.symbols)}, the number of symbols")
        return self


AnySource = Annotated[PythonStandardLibrary | Files | Hub | Formal | Copies, Field(discriminator="kind")]


class TrainTokenizer(Config):
    """A SentencePiece tokenizer trained on the corpus's training split; it gives any text back unchanged."""

    kind: Literal["train"] = "train"
    vocab_size: int = Field(default=4096, ge=260)
    """Tokens, among them the 256 bytes, the unknown and the end-of-document token."""
    model_type: Literal["bpe", "unigram"] = "bpe"
    """`bpe` trains about twenty times as fast; `unigram` encodes about five times as fast."""
    character_coverage: float = Field(default=0.9995, ge=0.98, le=1.0)
    """Share of the text's characters that get a token of their own; the rest are spelt in bytes."""
    split_digits: bool = False
    """Every digit is a token of its own."""
    max_bytes: int = Field(default=32_000_000, gt=0)
    """How much text to train on, drawn evenly from all of it. Memory grows with it, whatever the corpus's size."""


class SentencePieceModel(Config):
    """A SentencePiece tokenizer that exists."""

    kind: Literal["sentencepiece"]
    path: str
    """The `.model` file. It must define an end-of-sentence piece, which ends each document."""


class DataConfig(Config):
    """What a model is trained and validated on."""

    folder: str = "runs/corpus"
    """Where `mep prepare` writes the corpus and training reads it; on a cluster, a folder that all nodes share."""
    source: AnySource = PythonStandardLibrary()
    """Where the text comes from."""
    tokenizer: Annotated[TrainTokenizer | SentencePieceModel, Field(discriminator="kind")] = TrainTokenizer()
    """How text becomes tokens."""
    validation_fraction: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the documents that are held out; which ones depends on `seed` alone."""
    seed: int = Field(default=0, ge=0)
    """Decides which documents are held out and which text trains the tokenizer. Runs of any seed share a corpus."""
    num_threads: int = Field(default=4, ge=1)
    """Threads that encode. The corpus does not depend on it."""
    index_folder: str | None = None
    """Where training keeps the order of its samples; all nodes must share it. None: inside `folder`."""
