"""Rows as CSV, in full precision."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence

from megatron_mep.reporting.comparison import Comparison, Line
from megatron_mep.reporting.rows import AnalysisRow, ModelRow, ProbeRow, Row

OF_MODEL = ("run", "encoding", "extrapolation", "step", "seed", "train_length")
PERPLEXITY_COLUMNS = (
    *("protocol", "last_k", "scored_tokens", "scored_hash", "tokenizer_hash"),
    *(*OF_MODEL, "length", "context", "window", "stride"),
    *("perplexity", "perplexity_low", "perplexity_high", "nll", "bits_per_byte", "non_finite"),
    *("ratio_to_train_length", "checkpoint", "created"),
)
PROBE_COLUMNS = (
    *("kind", "task", "task_options", "samples_hash", "num_samples"),
    *(*OF_MODEL, "length", "depth"),
    *("found", "exact", "token_accuracy", "mean_rank", "non_finite", "checkpoint", "created"),
)
ANALYSIS_COLUMNS = (
    *("scored_tokens", "scored_hash"),
    *(*OF_MODEL, "length"),
    *("receptive_field_share", "receptive_field", "checkpoint", "created"),
)


def perplexities_csv(comparisons: Sequence[Comparison]) -> str:
    """One record a number; what may be compared agrees in `scored_hash` and `tokenizer_hash`."""
    return _written(
        PERPLEXITY_COLUMNS,
        (_perplexity(row, line) for comparison in comparisons for line in comparison.lines for row in line.measured),
    )


def probes_csv(rows: Iterable[ProbeRow]) -> str:
    """One record a row; what may be compared agrees in `samples_hash`."""
    return _written(PROBE_COLUMNS, (_record(row) | {"task_options": json.dumps(row.task_options)} for row in rows))


def analyses_csv(rows: Iterable[AnalysisRow]) -> str:
    """One record a row; what may be compared agrees in `scored_hash`."""
    return _written(ANALYSIS_COLUMNS, map(_record, rows))


def _perplexity(row: Row, line: Line) -> dict[str, object]:
    ratio = line.ratio(row.length) if row.context == "full" else math.nan
    return _record(row) | {
        "perplexity": row.value,
        "ratio_to_train_length": "" if math.isnan(ratio) else ratio,
    }


def _record(row: ModelRow) -> dict[str, object]:
    extrapolation = json.dumps(row.extrapolation) if row.extrapolation else ""
    return row.model_dump() | {"created": row.created.isoformat(), "extrapolation": extrapolation}


def _written(columns: Sequence[str], records: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
