"""Files that are on the disk once they are in place."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_mep.config.errors import CheckpointError, Mistake


def write_atomically(file: Path, text: str, beside: Path | None = None) -> None:
    """Writes a small file beside, in the same folder where nothing else is said, and renames it into place."""
    partial = beside or file.with_name(f".{file.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def told_as_mistake(folder: Path) -> Iterator[None]:
    """A disk that is full, or gone, is the user's to put right: a `CheckpointError` names the cause."""
    try:
        yield
    except OSError as error:
        rule = f"takes no checkpoint: {error.strerror or error}; the last whole one is kept"
        remedy = "make room, or put the file system right, and start the run again: it goes on from there"
        raise CheckpointError(Mistake(str(error.filename or folder), None, rule, remedy)) from error
