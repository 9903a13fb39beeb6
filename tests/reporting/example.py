"""Result rows and run folders, made by what writes them in earnest."""

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from megatron_mep.evaluation.rows import Measurement, ModelFacts, ResultRow, append_rows, perplexity_of
from megatron_mep.reporting.records import Row

TRAIN_LENGTH = 128
START = datetime(2025, 1, 1, tzinfo=UTC)


def result(run: str, length: int, perplexity: float, *, minutes: int = 0, **changes: Any) -> ResultRow:
    """A row in `blocks` at `length`; `changes` replace any of its fields, a NaN perplexity is one not finite."""
    nll = None if math.isnan(perplexity) else 1e4 if math.isinf(perplexity) else math.log(perplexity)
    values: dict[str, Any] = {
        "run": run,
        "purpose": "evaluation",
        "encoding": "mep",
        "encoding_options": {"width": 8.0},
        "extrapolation": (),
        "checkpoint": f"runs/{run}/checkpoints/step_100",
        "step": 100,
        "consumed_tokens": 409_600,
        "num_parameters": 1_000_000,
        "train_length": TRAIN_LENGTH,
        "seed": 1,
        "tokenizer_hash": "t" * 64,
        "corpus_fingerprint": "c" * 64,
        "precision": "fp32",
        "attention_backend": "toeplitz",
        "attention_epsilon": 1e-6,
        "tensor_parallel": 2,
        "data_parallel": 1,
        "context_parallel": 1,
        "pipeline_parallel": 1,
        "version": "0.1.0",
        "protocol": "blocks",
        "length": length,
        "context": "full",
        "window": length,
        "stride": length,
        "last_k": None,
        "scored_tokens": 4096,
        "scored_hash": "5" * 64,
        "scored_bytes": None,
        "nll": nll,
        "perplexity": None if nll is None else perplexity_of(nll),
        "bits_per_byte": None,
        "non_finite": int(nll is None),
        "seconds": 1.0,
        "tokens_per_s": 4096.0,
        "attention_kept": 0.25,
        "attention_dropped": 5e-7,
    } | changes
    facts = ModelFacts(**{name: values[name] for name in ModelFacts.model_fields})
    measurement = Measurement(**{name: values[name] for name in Measurement.model_fields if name in values})
    return ResultRow.of(facts, measurement, START + timedelta(minutes=minutes))


def as_read(*results: ResultRow) -> list[Row]:
    return [Row.model_validate_json(each.model_dump_json()) for each in results]


def curve(run: str, perplexities: dict[int, float], cut: float = 30.5, **changes: Any) -> list[ResultRow]:
    """Rows in `blocks` at several lengths, with their controls beyond the training length."""
    full = [result(run, length, perplexity, **changes) for length, perplexity in perplexities.items()]
    beyond = [length for length in perplexities if length > TRAIN_LENGTH]
    control: dict[str, Any] = {"context": "cut", "window": TRAIN_LENGTH, "stride": TRAIN_LENGTH // 2}
    return full + [result(run, length, cut, **(control | changes)) for length in beyond]


def run_folder(folder: Path, rows: list[ResultRow]) -> Path:
    append_rows(folder / "evaluation" / "lengths.jsonl", rows)
    (folder / "run.yaml").write_text("model:\n  encoding: {name: mep}  # <i>as resolved</i>\n")
    records = [{"step": step, "consumed_tokens": step * 4096, "loss": 10 / step} for step in range(1, 30)]
    records[-1]["validation_loss"] = 0.4
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder
