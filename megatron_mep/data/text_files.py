"""Reads documents from text files and JSON lines, plain or compressed."""

import json
from collections.abc import Iterator
from pathlib import Path

from fsspec.compression import compr

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.documents import Document, Skip, missing_column, text_of

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


def whole_file(path: Path) -> Iterator[Document]:
    """One document a file."""
    for content, position in _read(path, by_line=False):
        yield Document(text_of(content), position)


def lines(path: Path) -> Iterator[Document]:
    """One document a line, without the line's end."""
    for line, position in _read(path, by_line=True):
        yield Document(text_of(line.removesuffix(b"\n").removesuffix(b"\r")), position)


def json_lines(path: Path, column: str) -> Iterator[Document]:
    """One JSON object a line; `DataError` where the first one lacks the column."""
    checked = False
    for line, position in _read(path, by_line=True):
        row = _object_of(line)
        if isinstance(row, Skip):
            yield Document(row, position)
            continue
        if not checked and column not in row:
            raise missing_column(column, row, str(path))
        checked = True
        yield Document(text_of(row.get(column)), position)


def without_compression(path: Path) -> Path:
    """The name of what a compressed file holds: `a.jsonl` for `a.jsonl.gz`."""
    return path.with_suffix("") if path.suffix in _COMPRESSIONS else path


def _object_of(line: bytes) -> dict[str, object] | Skip:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Skip.NOT_UNICODE
    if not text or text.isspace():
        return Skip.EMPTY
    try:
        row = json.loads(text)
    except json.JSONDecodeError:
        return Skip.NOT_JSON
    return row if isinstance(row, dict) else Skip.NOT_JSON


def _read(path: Path, by_line: bool) -> Iterator[tuple[bytes, int]]:
    """Decompressed content, and how many bytes of the file have been read for it."""
    compression = _COMPRESSIONS.get(path.suffix)
    if compression not in compr:
        remedy = f"decompress it, or install the package that gives fsspec {compression}"
        raise DataError(Mistake(str(path), None, "must be compressed in a way that can be read here", remedy))
    with path.open("rb") as file:
        content = compr[compression](file, mode="rb")
        for part in content if by_line else [content.read()]:
            yield part, file.tell()
