"""Result rows and run folders, made by what writes them in earnest."""

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from megatron_mep.evaluation.rows import Measurement, ModelFacts, ResultRow, append_rows, perplexity_of
from megatron_mep.probes.rows import Answers, ProbeRow
from megatron_mep.reporting.rows import Row
from megatron_mep.reporting.shapes import Shape
from megatron_mep.studies.summary import Cell, Difference, Summary

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


def probe(run: str, length: int, score: float, **changes: Any) -> ProbeRow:
    """A row of a passkey in the middle of `length` tokens; `changes` replace any of its fields."""
    values: dict[str, Any] = (
        result(run, length, 30.0).model_dump()
        | {
            "kind": "retrieval",
            "task": "passkey",
            "task_options": {"max_new_tokens": 12},
            "length": length,
            "depth": 0.5,
            "num_samples": 8,
            "samples_hash": f"{length:064}",
            "prompt_tokens": length,
            "max_new_tokens": 12,
            "probe_seed": 0,
            "oracle": 100.0,
            "found": score,
            "exact": score / 2,
            "token_accuracy": 95.0,
            "mean_rank": 1.5,
            "mean_reciprocal_rank": 0.9,
            "nll": 0.1,
            "non_finite": 0,
            "seconds": 1.0,
        }
        | changes
    )
    facts = ModelFacts(**{name: values[name] for name in ModelFacts.model_fields})
    answers = Answers(**{name: values[name] for name in Answers.model_fields})
    return ProbeRow.of(facts, answers, START)


def exercise(run: str, length: int, exact: float) -> ProbeRow:
    """A row of copying `length` letters."""
    changes: dict[str, Any] = {"found": None, "exact": exact, "depth": None, "task_options": {}}
    return probe(run, length, 0.0, kind="formal", task="copy", **changes)


def analysis(run: str, length: int, **changes: Any) -> dict[str, Any]:
    """A row of what a model of two layers of two heads uses, as it stands in a file."""
    facts = {name: value for name, value in result(run, length, 30.0).model_dump(mode="json").items()
             if name in ModelFacts.model_fields}  # fmt: skip
    return (
        facts
        | {
            "schema_version": 1,
            "created": START.isoformat(),
            "kind": "analysis",
            "length": length,
            "scored_tokens": 8,
            "scored_hash": "9" * 64,
            "distance_ends": [0, 1, 3, length - 1],
            "attention_mass": [[[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]] * 2,
            "gradient_share": [0.2, 0.5, 0.9, 1.0],
            "receptive_field_share": 0.99,
            "receptive_field": length - 2,
        }
        | changes
    )


def whole_run(folder: Path, run: str) -> Path:
    """A run folder with rows of every kind."""
    positions: dict[str, Any] = {"position_ends": (1, 2, 128), "position_nll": (6.0, 5.0, None)}
    run_folder(
        folder,
        [
            *curve(run, {128: 31.0, 256: 29.0, 512: 70.0}),
            result(run, 128, 31.0, protocol="per-position", scored_hash="8" * 64, **positions),
        ],
    )
    (folder / "probes").mkdir()
    probes = [probe(run, length, 50.0, depth=depth) for length in (128, 256) for depth in (0.0, 0.5, 1.0)]
    probes += [exercise(run, length, 90.0) for length in (10, 20)]
    append_rows(folder / "probes" / "suite.jsonl", probes)
    (folder / "analysis").mkdir()
    (folder / "analysis" / "use.jsonl").write_text(f"{json.dumps(analysis(run, 128))}\n")
    while_training: dict[str, Any] = {"purpose": "validation", "checkpoint": None} | positions
    append_rows(
        folder / "validation.jsonl", [result(run, 128, 35.0, step=step, **while_training) for step in (50, 100)]
    )
    return folder


def shape(encoding: str = "mep", runs: tuple[str, ...] = ("mep",), **told: Any) -> Shape:
    """That of an encoding with two heads; `told` is what else is said of it."""
    return Shape(encoding, "factor on the weight", runs, (0, 1, 3), ((1.0, 0.5, 0.1), (1.0, 0.9, 0.7)), **told)


def trained_shape() -> Shape:
    """That of a layer, with what it was before."""
    return shape("fire", trained="layer 2 of 3, after step 8", before=((1.0, 0.4, 0.2), (1.0, 0.8, 0.6)))


def summary_file(study: Path) -> Path:
    """The summary of a study of two encodings and two seeds, in its folder."""

    def cell(encoding: str, length: int, mean: float | None, less: float | None = None, context: str = "full") -> Cell:
        difference = less and Difference(mean=less, low=less - 0.1, high=less + 0.05, significant=less < 0,
                                         num_seeds=2, num_documents=9)  # fmt: skip
        scores: dict[str, Any] = {"mean": mean, "deviation": 0.5, "bits_per_byte": 2.0, "against_baseline": difference}
        scored: dict[str, Any] = {"scored_tokens": 4096, "scored_hash": "5" * 64, "seeds": (1, 2), "perplexities": ()}
        how: dict[str, Any] = {"protocol": "blocks", "window": length, "stride": length, "last_k": None, "size": None}
        return Cell(encoding=encoding, train_length=128, length=length, context=context, **how, **scored, **scores)

    cells = (
        cell("alibi", 128, 31.0),
        cell("mep", 128, 28.0, less=-0.1),
        cell("alibi", 256, None),
        cell("mep", 256, 27.0, less=0.01),
        cell("mep", 256, 99.0, context="cut"),
    )
    summary = Summary(study="small", baseline="alibi", confidence=0.95, comparisons_at_once=1, seeds=(1, 2),
                      missing=("rope-seed1",), version="0.1.0", cells=cells)  # fmt: skip
    file = study / "summary.json"
    file.write_text(summary.model_dump_json())
    return file
