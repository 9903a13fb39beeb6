"""Which measurements a file of rows has already, so that an evaluation that was stopped goes on by length."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import ValidationError

from megatron_mep.evaluation.perplexity import Scored, Stream
from megatron_mep.evaluation.plan import Plan
from megatron_mep.evaluation.rows import ModelFacts, OutcomeRow, ResultRow

Row = TypeVar("Row", bound=OutcomeRow)

LAYOUT = {"tensor_parallel", "data_parallel", "context_parallel", "pipeline_parallel", "num_parameters"}
"""Facts that leave a measurement as it is; tensor ranks pad the vocabulary, and with it count more parameters."""


def rows_of(path: Path, kind: type[Row], facts: ModelFacts, since: datetime) -> list[Row]:
    """The rows of a file that are of a kind and of the same model, written after a time: that of its checkpoint.

    Half a line, which a kill may leave, and lines of another make are no rows of it.
    """
    lines = path.read_bytes().splitlines() if path.is_file() else []
    rows = (_row(line, kind) for line in lines)
    return [row for row in rows if row and row.created >= since and _facts(row) == _facts(facts)]


def is_among(rows: Iterable[ResultRow], plan: Plan, stream: Stream) -> bool:
    """Whether one of the rows scored the very tokens of a plan in the way that it does."""
    alike = [row for row in rows if _way(row) == _way(plan)]
    return bool(alike) and any(row.scored_hash == _hash(plan, stream) for row in alike)


def _row(line: bytes, kind: type[Row]) -> Row | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


def _facts(of: ModelFacts) -> dict[str, object]:
    # as JSON has it: a tuple among the options of an encoding comes back from a file as a list
    return of.model_dump(mode="json", include=set(ModelFacts.model_fields) - LAYOUT)


def _way(of: Plan | ResultRow) -> tuple[object, ...]:
    return of.protocol, of.length, of.context, of.window, of.stride, of.last_k, of.position_ends


def _hash(plan: Plan, stream: Stream) -> str:
    positions = plan.scored_positions
    return Scored(positions, np.asarray(stream[positions], np.int64), np.empty(0)).hash
