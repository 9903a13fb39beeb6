"""What a file of rows tells of a checkpoint already, so that a job which was stopped does not measure it again."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from megatron_mep.checkpoint.files import RUN_FILE
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.evaluation.resume import rows_of
from megatron_mep.evaluation.rows import ModelFacts, OutcomeRow

Row = TypeVar("Row", bound=OutcomeRow)


def measured_rows(path: Path, kind: type[Row], facts: ModelFacts, folder: Path, again: bool) -> list[Row]:
    """The rows of a kind that a file has of the model in a checkpoint's folder, on every rank; collective.

    None where they are to be measured `again`.
    """
    written = datetime.fromtimestamp((folder / RUN_FILE).stat().st_mtime, UTC)
    return [] if again else told_by_rank_0(lambda: rows_of(path, kind, facts, written))
