"""Reads rows and training records from files of one JSON object a line; every broken line is told, with the reason."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.reporting.rows import SCHEMA_VERSION, AnalysisRow, AnyRow, ProbeRow, Row, TrainingPoint
from megatron_mep.reporting.studies import Summary

KINDS: dict[str, type[AnyRow]] = {"retrieval": ProbeRow, "formal": ProbeRow, "analysis": AnalysisRow}
"""What a row's `kind` says it is; a result row has none."""


@dataclass(frozen=True)
class Read:
    """A file that went into a report."""

    path: Path
    sha256: str
    num_records: int


@dataclass(frozen=True)
class Record:
    """A row with the line it was read from."""

    row: AnyRow
    line: str


Kept = TypeVar("Kept")
Model = TypeVar("Model", bound=BaseModel)


def read_rows(path: Path) -> tuple[list[Record], Read]:
    """The rows of a file, of any kind; every broken line is told in a `DataError`."""
    return _read(path, lambda tree, line: Record(_row(tree), line))


def read_metrics(path: Path) -> tuple[list[TrainingPoint], Read]:
    """The records of a training run's metrics; every broken line is told in a `DataError`."""
    return _read(path, lambda tree, _: _validated(TrainingPoint, tree, "a training record"))


def read_summary(path: Path) -> tuple[Summary, Read]:
    """A study's summary; a `DataError` tells why a file is none."""
    content = path.read_bytes()
    try:
        summary = Summary.model_validate_json(content)
    except ValidationError as error:
        rule = f"must be the summary of a study ({'; '.join(_reasons(error))})"
        raise DataError(
            Mistake(str(path), None, rule, "summarize the study again, `mep study STUDY --summary`")
        ) from None
    return summary, Read(path, hashlib.sha256(content).hexdigest(), len(summary.cells))


class _BrokenLineError(ValueError):
    """What a line must be, and why it is not."""


def _read(path: Path, keep: Callable[[Any, str], Kept]) -> tuple[list[Kept], Read]:
    content = path.read_bytes()
    kept: list[Kept] = []
    mistakes: list[Mistake] = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        try:
            kept.append(keep(json.loads(line), line))
        except json.JSONDecodeError as error:
            mistakes.append(_broken(path, number, f"must be JSON ({error})"))
        except _BrokenLineError as error:
            mistakes.append(_broken(path, number, str(error)))
    if mistakes:
        raise DataError(mistakes)
    return kept, Read(path, hashlib.sha256(content).hexdigest(), len(kept))


def _row(tree: Any) -> AnyRow:
    stated = tree if isinstance(tree, dict) else {}
    if stated.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise _BrokenLineError(
            f"must be a row of schema_version {SCHEMA_VERSION}, which this version reads, "
            f"not {stated['schema_version']!r}"
        )
    kind = KINDS.get(str(stated.get("kind")), Row)
    return _validated(kind, tree, "a result row" if kind is Row else f"a row of kind {stated['kind']}")


def _validated(model: type[Model], tree: Any, what: str) -> Model:
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise _BrokenLineError(f"must be {what} ({'; '.join(_reasons(error))})") from None


def _reasons(error: ValidationError) -> Iterator[str]:
    for details in error.errors(include_url=False):
        yield f"{'.'.join(map(str, details['loc'])) or 'the line'}: {details['msg']}"


def _broken(path: Path, number: int, rule: str) -> Mistake:
    return Mistake(f"{path}:{number}", None, rule, "remove the line, or write the file again")
