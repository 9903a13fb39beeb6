"""Files that are on the disk once they are in place."""

import os
from pathlib import Path


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
