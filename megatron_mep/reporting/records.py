"""Reads what a report is made of: result rows and training metrics, one JSON object a line.

The reader takes from a row what a report shows and leaves the rest alone, so that a newer writer may add to it.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from megatron_mep.config.errors import DataError, Mistake

SCHEMA_VERSION = 1


class Row(BaseModel):
    """A result row, as far as a report reads it."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    schema_version: Literal[1]
    run: str
    purpose: Literal["evaluation", "validation"]
    encoding: str
    encoding_options: dict[str, Any]
    extrapolation: tuple[dict[str, Any], ...] = ()
    """The length tricks that were put on the encoding, in turn, each by its name and all its options."""
    checkpoint: str | None
    step: int
    consumed_tokens: int
    num_parameters: int
    train_length: int
    seed: int
    tokenizer_hash: str
    corpus_fingerprint: str
    precision: str
    attention_backend: str
    attention_epsilon: float = 0.0
    tensor_parallel: int
    data_parallel: int
    version: str
    protocol: str
    length: int
    context: Literal["full", "cut"]
    window: int
    stride: int | None
    last_k: int | None
    scored_tokens: int
    scored_hash: str
    nll: float | None
    """Nats per token; `None` where `non_finite` tokens have none."""
    perplexity: float | None
    bits_per_byte: float | None
    non_finite: int
    created: AwareDatetime

    @property
    def value(self) -> float:
        """Perplexity: infinite beyond the largest double, NaN where the NLL of some token is not finite."""
        if self.perplexity is not None:
            return self.perplexity
        return math.nan if self.non_finite else math.inf


class TrainingPoint(BaseModel):
    """One record of a run's training metrics, as far as a report reads it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int
    consumed_tokens: int
    loss: float | None = None
    validation_loss: float | None = None


@dataclass(frozen=True)
class Read:
    """A file that went into a report."""

    path: Path
    sha256: str
    num_records: int


@dataclass(frozen=True)
class Record:
    """A result row with the line it was read from."""

    row: Row
    line: str


Model = TypeVar("Model", bound=BaseModel)


def read_rows(path: Path) -> tuple[list[Record], Read]:
    """The rows of a results file; every broken line is told in a `DataError`."""
    return _read(path, Row, "a result row", Record)


def read_metrics(path: Path) -> tuple[list[TrainingPoint], Read]:
    """The records of a training run's metrics; every broken line is told in a `DataError`."""
    return _read(path, TrainingPoint, "a training record", lambda point, _: point)


Kept = TypeVar("Kept")


def _read(path: Path, model: type[Model], what: str, keep: Callable[[Model, str], Kept]) -> tuple[list[Kept], Read]:
    content = path.read_bytes()
    kept: list[Kept] = []
    mistakes: list[Mistake] = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        try:
            kept.append(keep(model.model_validate(json.loads(line)), line))
        except json.JSONDecodeError as error:
            mistakes.append(_broken(path, number, f"must be JSON ({error})"))
        except ValidationError as error:
            mistakes.append(_broken(path, number, f"must be {what} ({'; '.join(_reasons(error))})"))
    if mistakes:
        raise DataError(mistakes)
    return kept, Read(path, hashlib.sha256(content).hexdigest(), len(kept))


def _reasons(error: ValidationError) -> Iterator[str]:
    for details in error.errors(include_url=False):
        yield f"{'.'.join(map(str, details['loc'])) or 'the line'}: {details['msg']}"


def _broken(path: Path, number: int, rule: str) -> Mistake:
    return Mistake(f"{path}:{number}", None, rule, "remove the line, or write the file again")
