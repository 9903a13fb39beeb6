"""Folders that come into being whole: written beside, then renamed into place."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def written_whole(folder: Path, replace: bool = False) -> Iterator[Path]:
    """A new folder to write in, which becomes `folder` when the block ends and vanishes when it fails.

    Raises `FileExistsError` at the end where `folder` holds something by then, unless `replace` says to put it away.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{uuid4().hex}")
    partial.mkdir()
    try:
        yield partial
        if replace and folder.exists():
            _exchange(partial, folder)
        else:
            _rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename(partial: Path, folder: Path) -> None:
    """POSIX renames over an empty folder only: of two that write the same one, the first wins."""
    try:
        partial.rename(folder)
    except OSError as error:
        if folder.exists():
            raise FileExistsError(f"{folder} exists") from error
        raise


def _exchange(partial: Path, folder: Path) -> None:
    old = partial.with_name(partial.name + ".old")
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)
