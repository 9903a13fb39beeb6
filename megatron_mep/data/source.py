"""Finds the files that a run file's `data.source` means, and opens them as one stream of documents."""

import hashlib
import os
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from glob import glob
from lzma import LZMAError
from pathlib import Path
from typing import TypeAlias

from pyarrow import ArrowException

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data import copies, exercises, tables, text_files
from megatron_mep.data.config import AnySource, Copies, Files, Formal, Hub, PythonStandardLibrary
from megatron_mep.data.documents import Document, Source

_Reader: TypeAlias = Callable[[Path], Iterator[Document]]

_FORMATS = {".txt": "text", ".md": "text", ".py": "text", ".jsonl": "jsonl", ".parquet": "parquet"}


def source_files(source: AnySource) -> tuple[Path, ...]:
    """The files of a source, in the order they are read; none for a dataset of the hub, nor for what is drawn."""
    match source:
        case PythonStandardLibrary():
            return _standard_library(source.max_bytes)
        case Files():
            return _matching(source.paths)
        case Hub() | Formal() | Copies():
            return ()


def open_source(source: AnySource) -> Source:
    """The documents of a source. Those of the hub are downloaded here."""
    match source:
        case PythonStandardLibrary():
            return _open_files([(path, text_files.whole_file) for path in source_files(source)])
        case Files():
            return _open_files([(path, _reader_of(path, source)) for path in source_files(source)])
        case Hub():
            return tables.open_hub(source)
        case Formal():
            return exercises.open_exercises(source)
        case Copies():
            return copies.open_copies(source)


def _standard_library(max_bytes: int | None) -> tuple[Path, ...]:
    """Every module but the tests and what was installed later, within the limit."""
    root = Path(sysconfig.get_path("stdlib"))
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = set(subfolders) - {"site-packages", "dist-packages", "test"}
        names += [(Path(folder) / file).relative_to(root) for file in files if file.endswith(".py")]
    names.sort()
    if max_bytes is None:
        return tuple(root / name for name in names)
    # By hash, so that a small corpus is no less varied than a large one.
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    chosen, left = [], max_bytes
    for name in names:
        size = (root / name).stat().st_size
        if size <= left:
            chosen.append(root / name)
            left -= size
    return tuple(sorted(chosen))


def _matching(patterns: tuple[str, ...]) -> tuple[Path, ...]:
    """The files that paths and patterns name, each once."""
    found: dict[Path, None] = {}
    mistakes = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        # A file may be called what looks like a pattern.
        paths = [path] if path.is_file() else [Path(name) for name in sorted(glob(str(path), recursive=True))]
        files = [path for path in paths if path.is_file()]
        if not files:
            remedy = f"correct it; a folder's files are `{pattern}/**`" if path.is_dir() else "correct the path"
            mistakes.append(Mistake("data.source.paths", pattern, "must match a file", remedy))
        found |= dict.fromkeys(files)
    if mistakes:
        raise DataError(mistakes)
    return tuple(found)


def _reader_of(path: Path, source: Files) -> _Reader:
    plain_name = text_files.without_compression(path)
    match source.format or _FORMATS.get(plain_name.suffix):
        case "text":
            return text_files.whole_file if source.one_document_per == "file" else text_files.lines
        case "jsonl":
            return partial(text_files.json_lines, column=source.column)
        case "parquet":
            return partial(tables.parquet, column=source.column)
        case _:
            rule = f"must be stated: {path} ends in none of {', '.join(_FORMATS)}"
            raise DataError(Mistake("data.source.format", None, rule, "set it to text, jsonl or parquet"))


def _open_files(readers: list[tuple[Path, _Reader]]) -> Source:
    return Source(sum(path.stat().st_size for path, _ in readers), partial(_documents, readers))


def _documents(readers: list[tuple[Path, _Reader]]) -> Iterator[Document]:
    start = 0
    for path, read in readers:
        try:
            for document in read(path):
                yield document._replace(position=start + document.position)
        except (OSError, EOFError, zlib.error, LZMAError, ArrowException) as error:
            rule = f"must be readable: {error}"
            raise DataError(Mistake(str(path), None, rule, "repair the file, or leave it out")) from error
        start += path.stat().st_size
