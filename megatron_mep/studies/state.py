"""How far an arm is: what it was trained to, and which of its measurements are there."""

from pathlib import Path

from pydantic import ValidationError

from megatron_mep.data.manifest import Manifest
from megatron_mep.evaluation.plan import Plan, plans
from megatron_mep.evaluation.rows import ResultRow
from megatron_mep.studies.arms import Arm
from megatron_mep.training.attempts import Finished

Way = tuple[str, int, str, int, int | None, int | None]
"""How a row scored: protocol, length, context, window, stride and last_k."""


def is_trained(arm: Arm) -> bool:
    """Whether the arm has come to its last step."""
    finished = Finished.read(arm.run.folder)
    return finished is not None and finished.step >= arm.run.training.steps


def rows_of(arm: Arm) -> dict[Way, ResultRow]:
    """The newest row of each way in which the trained arm was measured; the half line that a kill leaves is none."""
    lines = arm.rows_file.read_bytes().splitlines() if arm.rows_file.is_file() else []
    rows = [row for row in map(_row, lines) if row is not None and row.step == arm.run.training.steps]
    return {way_of(row): row for row in sorted(rows, key=lambda row: row.created)}


def planned_rows(arm: Arm, rows: dict[Way, ResultRow], corpus: Manifest) -> dict[Way, ResultRow]:
    """Of an arm's rows those that the study asks for, in its order; others may be left of an earlier one."""
    planned = plans(arm.run.evaluation.resolved(arm.train_length), corpus.validation.num_tokens)
    found = ((way_of(plan), rows.get(way_of(plan)), int(plan.num_scored.sum())) for plan in planned)
    return {way: row for way, row, scored in found if row is not None and row.scored_tokens == scored}


def is_evaluated(arm: Arm, corpus: Manifest) -> bool:
    """Whether all is measured that the study asks for."""
    planned = plans(arm.run.evaluation.resolved(arm.train_length), corpus.validation.num_tokens)
    return len(planned_rows(arm, rows_of(arm), corpus)) == len({way_of(plan) for plan in planned})


def state_of(arm: Arm) -> str:
    """In words."""
    if not is_trained(arm):
        return "begun" if arm.run.folder.is_dir() else "to do"
    folder = Path(arm.run.data.folder)
    return "done" if is_evaluated(arm, Manifest.load(folder)) else "trained"


def way_of(of: Plan | ResultRow) -> Way:
    """How a plan scores, or a row did."""
    return of.protocol, of.length, of.context, of.window, of.stride, of.last_k


def _row(line: bytes) -> ResultRow | None:
    try:
        return ResultRow.model_validate_json(line)
    except ValidationError:
        return None
