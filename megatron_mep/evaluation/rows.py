"""Result rows: one measurement with everything needed to compare it, one line of JSON in a results file.

A number too large for a double, and one that is no number, is `null`: JSON has neither. Which of the two it is can be
told from the row: `nll` is finite unless `non_finite` counts tokens, so `perplexity: null` beside a finite `nll` means
exp(nll) beyond the largest double.
"""

import errno
import math
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from megatron_mep.config.base import Config
from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.evaluation.config import Protocol
from megatron_mep.evaluation.plan import Context

Row = TypeVar("Row", bound=Config)


class Measurement(Config):
    """What was scored, how, and the outcome."""

    protocol: Protocol
    length: int
    """Inputs of a block (`blocks`, `per-position`) or of a window (`sliding`, `last-k`)."""
    context: Context
    """`full`: all tokens before it in the block or window. `cut`: at most `window` of them."""
    window: int
    """Inputs of one forward pass."""
    stride: int | None
    """Distance between the starts of neighbouring windows; null in `last-k`, whose windows follow no grid."""
    last_k: int | None
    """Scored tokens of a window in `last-k`; null in the others."""
    scored_tokens: int
    scored_hash: str
    """SHA-256 of the scored positions and token ids, as scored; equal for every length of a protocol."""
    scored_bytes: int | None
    """UTF-8 bytes of the scored tokens; null where the tokenizer does not say."""
    nll: float | None
    """Mean negative log-likelihood, nats per token; null where it is not finite."""
    perplexity: float | None
    """exp(nll); null beyond the largest double."""
    bits_per_byte: float | None
    non_finite: int = Field(ge=0)
    """Scored tokens whose negative log-likelihood is infinite or not a number."""
    document_tokens: tuple[int, ...] | None = None
    """Scored tokens of each document that has any, in the order of the text; null where their ends are not known."""
    document_nll: tuple[float, ...] | None = None
    """Sum of their negative log-likelihoods; null beside a null `nll` too."""
    perplexity_low: float | None = None
    """Lower end of the 95 % interval of the perplexity, by bootstrap over documents; null for fewer than two."""
    perplexity_high: float | None = None
    """Upper end."""
    position_ends: tuple[int, ...] | None = None
    """Last position of each range in a window, from 1, in `per-position` and in validation; null elsewhere."""
    position_nll: tuple[float | None, ...] | None = None
    """Mean negative log-likelihood in each range; null where it is not finite."""
    seconds: float
    tokens_per_s: float
    """Input tokens forwarded a second, over all data-parallel ranks."""
    attention_kept: float | None = None
    """Share of causal scores that attention computed, over all layers and heads; null where it leaves none out."""
    attention_dropped: float | None = None
    """The most that any query's softmax may have lost by that: a proved bound, at most `attention_epsilon`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.nll is None) != (self.non_finite > 0):
            raise ValueError("nll must be null where non_finite counts tokens, and only there")
        if self.nll is not None and not _equal(self.perplexity, perplexity_of(self.nll)):
            raise ValueError(f"perplexity={self.perplexity} must be exp(nll={self.nll})")
        if self.document_tokens is not None and sum(self.document_tokens) != self.scored_tokens:
            raise ValueError(f"document_tokens must add up to scored_tokens={self.scored_tokens}")
        return self


class ModelFacts(Config):
    """What was measured: run, encoding, checkpoint, and how it ran. The same for every row of an evaluation."""

    run: str
    purpose: Literal["evaluation", "validation"]
    """`validation` rows are written while training, `evaluation` rows from a checkpoint."""
    encoding: str
    encoding_options: dict[str, Any]
    extrapolation: tuple[dict[str, Any], ...] = ()
    """The length tricks that were put on the encoding, in turn, each with its options."""
    checkpoint: str | None
    """Null during training."""
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
    """Share of any query's softmax that attention was allowed to drop."""
    tensor_parallel: int
    data_parallel: int
    context_parallel: int = 1
    pipeline_parallel: int = 1
    version: str
    """Of this package."""


class OutcomeRow(ModelFacts):
    """One line of a file of rows: what was measured and when, to which each kind of row adds its outcome."""

    schema_version: Literal[1] = 1
    created: AwareDatetime

    @classmethod
    def of(cls, facts: ModelFacts, outcome: Config, created: datetime) -> Self:
        """The row of an outcome of this kind; `created` carries its time zone."""
        return cls(**facts.model_dump(), **outcome.model_dump(), created=created)


class ResultRow(OutcomeRow, Measurement):
    """One line of a results file."""


def perplexity_of(nll: float) -> float | None:
    """exp(nll), or `None` where that is beyond the largest double."""
    try:
        return math.exp(nll)
    except OverflowError:
        return None


def append_rows(path: Path, rows: Iterable[Config]) -> None:
    """Append whole lines in one write, on stable storage at return; of several ranks, one calls it."""
    lines = "".join(row.model_dump_json() + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        if _torn(path):
            lines = b"\n" + lines
        if file.write(lines) != len(lines):
            raise OSError(errno.ENOSPC, "a result row was not written whole", str(path))
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[ResultRow]:
    """The rows of a results file, as `rows_of_kind` reads them."""
    return rows_of_kind(path, ResultRow)


def rows_of_kind(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a file of one kind; all broken lines together are a `DataError` that names file and line."""
    rows: list[Row] = []
    mistakes: list[Mistake] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(kind.model_validate_json(line))
        except ValidationError as error:
            reason = "; ".join(_said(detail["loc"], detail["msg"]) for detail in error.errors(include_url=False))
            rule = f"must be a result row of schema_version 1 ({reason})"
            mistakes.append(Mistake(f"{path}:{number}", None, rule, "remove the line, or evaluate again"))
    if mistakes:
        raise DataError(mistakes)
    return rows


def _said(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, location))}: {message}" if location else message


def _equal(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-12)


def _torn(path: Path) -> bool:
    """Whether the file ends inside a line, as a writer killed half-way leaves it."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
