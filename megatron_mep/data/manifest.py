"""What a prepared corpus is made of and from: written last by `mep prepare`, read first by everything else."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from megatron_mep.config.base import Config
from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.config import DataConfig

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.model"
TRAIN = "train"
VALIDATION = "validation"

# What may change without changing the corpus.
_INCIDENTAL = {"folder", "num_threads", "index_folder"}


class SourceFile(Config):
    """A file that was read."""

    path: str
    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "SourceFile":
        """Read the file to its end."""
        return cls(path=str(path), num_bytes=path.stat().st_size, sha256=_sha256_of(path))


class Split(Config):
    """The documents of one part of the corpus."""

    num_documents: int
    num_tokens: int
    """With one end-of-document token for each document."""
    num_bytes: int
    """Of the text in UTF-8."""


class Manifest(Config):
    """A prepared corpus, described."""

    format: Literal[1] = 1
    settings: dict[str, JsonValue]
    """What the corpus was made with; see `settings_of`."""
    source_files: tuple[SourceFile, ...]
    train: Split
    validation: Split
    skipped: dict[str, int]
    """Documents left out, by reason."""
    vocab_size: int
    token_dtype: Literal["uint16", "int32"]
    """How the `.bin` files store a token."""
    end_of_document: int
    """The token that ends each document."""
    exact: bool
    """The tokenizer gives every text back unchanged."""
    tokenizer_sha256: str
    file_sizes: dict[str, int]
    """Bytes of every other file of the folder."""
    versions: dict[str, str]

    @cached_property
    def fingerprint(self) -> str:
        """One name for this content, which stays when the folder is moved."""
        return hashlib.sha256(self.model_dump_json(exclude={"versions"}).encode()).hexdigest()

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read and check the manifest of a prepared corpus.

        The tokenizer is checked by its hash, the larger files by their sizes.
        """
        path = folder / MANIFEST
        if not path.is_file():
            rule = "must hold a prepared corpus"
            raise DataError(Mistake("data.folder", str(folder), rule, "run `mep prepare RUN`"))
        try:
            manifest = cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise DataError(_damaged(path, f"cannot be read ({error.error_count()} mistakes)")) from error
        if mistakes := [_damaged(folder / name, fault) for name, fault in manifest._faults(folder)]:
            raise DataError(mistakes)
        return manifest

    def save(self, folder: Path) -> None:
        """Write the manifest into the folder it describes."""
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def refuse_other(self, data: DataConfig, file_sizes: dict[str, int]) -> None:
        """Raise `DataError` naming all that differs: a setting, or the name or size of a file that was read."""
        remedy = "set data.folder to another folder, or replace this corpus with --force"
        wanted, present = _flat(settings_of(data)), _flat(self.settings)
        mistakes = [
            Mistake(key, wanted.get(key), f"{data.folder} was prepared with {present.get(key)!r}", remedy)
            for key in sorted(wanted.keys() | present.keys())
            if wanted.get(key) != present.get(key)
        ]
        read = {file.path: file.num_bytes for file in self.source_files}
        changed = sorted({path for path, _ in read.items() ^ file_sizes.items()})
        if changed and not mistakes:
            rule = f"{len(changed)} of its files changed since {data.folder} was prepared, {changed[0]} among them"
            mistakes = [Mistake("data.source", None, rule, remedy)]
        if mistakes:
            raise DataError(mistakes)

    @property
    def summary(self) -> str:
        """One line for people."""
        skipped = ", ".join(f"{count} {reason}" for reason, count in self.skipped.items()) or "none"
        return (
            f"{self.train.num_documents} documents, {self.train.num_tokens} tokens to train on; "
            f"{self.validation.num_documents} documents, {self.validation.num_tokens} tokens to validate on; "
            f"{self.vocab_size} tokens in the vocabulary; left out: {skipped}"
        )

    def _faults(self, folder: Path) -> Iterator[tuple[str, str]]:
        for name, size in self.file_sizes.items():
            path = folder / name
            if not path.is_file():
                yield name, "is missing"
            elif path.stat().st_size != size:
                yield name, f"must have {size} bytes, as its manifest says, and has {path.stat().st_size}"
            elif name == TOKENIZER and _sha256_of(path) != self.tokenizer_sha256:
                yield name, "must be the file that its manifest names, and is another"


def settings_of(data: DataConfig) -> dict[str, JsonValue]:
    """All that decides what a corpus holds, as the run file states it."""
    return {"data": data.model_dump(mode="json", exclude=_INCIDENTAL)}


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path, fault: str) -> Mistake:
    return Mistake(str(path), None, fault, "run `mep prepare RUN --force`")


def _flat(settings: dict[str, JsonValue], prefix: str = "") -> dict[str, JsonValue]:
    """Settings by dotted key."""
    flat: dict[str, JsonValue] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
