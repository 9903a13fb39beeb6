"""A document, as every kind of source yields it: its text, or why it is left out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import NamedTuple

from megatron_mep.config.errors import DataError, Mistake


class Skip(Enum):
    """Why a document is left out."""

    EMPTY = "empty"
    NOT_UNICODE = "not valid Unicode"
    NOT_JSON = "not a JSON object"
    NO_TEXT = "no text in the column"


class Document(NamedTuple):
    """One document."""

    text: str | Skip
    position: int
    """How far into the source it ends, on the source's own scale."""


@dataclass(frozen=True)
class Source:
    """Documents that can be read over and over, always in the same order."""

    total: int
    """The position at the end of the last document."""
    documents: Callable[[], Iterator[Document]]


def text_of(value: object) -> str | Skip:
    """The text that a file, a line or a cell holds; bytes are UTF-8."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return Skip.NOT_UNICODE
    if not isinstance(value, str):
        return Skip.NO_TEXT
    if not value or value.isspace():
        return Skip.EMPTY
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which is no character.
        return Skip.NOT_UNICODE
    return value


def missing_column(column: str, columns: Iterable[str], place: str) -> DataError:
    """The error of a column that is not there."""
    names = list(columns)
    close = get_close_matches(column, names, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else "set data.source.column to the one that holds the text"
    rule = f"must be a column of {place}, which has {', '.join(map(repr, names)) or 'none'}"
    return DataError(Mistake("data.source.column", column, rule, remedy))
