"""Finds and reads what belongs into a report: results files, and the run files and metrics beside them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.reporting.records import Read, Record, TrainingPoint, read_metrics, read_rows

RESULTS_FOLDER = "evaluation"
METRICS_FILE = "metrics.jsonl"
RUN_FILE = "run.yaml"


@dataclass(frozen=True)
class Sources:
    """Everything read for a report."""

    records: list[Record] = field(default_factory=list)
    metrics: dict[str, list[TrainingPoint]] = field(default_factory=dict)
    """From a run's name to its training records."""
    settings: dict[str, str] = field(default_factory=dict)
    """From a run's name to its resolved run file, as YAML text."""
    files: list[Read] = field(default_factory=list)


def read_sources(results: Sequence[Path]) -> Sources:
    """What the given results files and run folders hold; a `DataError` where nothing is found or a line is broken.

    A run folder stands for its `evaluation/*.jsonl`, `metrics.jsonl` and `run.yaml`; a results file brings along the
    other two from the run folder that it is in.
    """
    sources = Sources()
    run_folders: dict[Path, set[str]] = {}
    for path in _results_files(results):
        records, read = read_rows(path)
        sources.records.extend(records)
        sources.files.append(read)
        run_folders.setdefault(_run_folder(path), set()).update(record.row.run for record in records)
    if not sources.records:
        raise DataError(_nothing(", ".join(map(str, results)), "must hold at least one result row"))
    for folder, runs in run_folders.items():
        _add_run(sources, folder, runs)
    return sources


def _results_files(results: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    mistakes: list[Mistake] = []
    for path in results:
        files = sorted((path / RESULTS_FOLDER).glob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []
        found.update(dict.fromkeys(files))
        if path.is_dir() and not files:
            mistakes.append(_nothing(str(path), f"must hold {RESULTS_FOLDER}/*.jsonl, as a run folder does"))
        elif not files:
            mistakes.append(_nothing(str(path), "must be a results file or a run folder, and does not exist"))
    if mistakes:
        raise DataError(mistakes)
    return list(found)


def _run_folder(results_file: Path) -> Path:
    folder = results_file.parent
    return folder.parent if folder.name == RESULTS_FOLDER else folder


def _add_run(sources: Sources, folder: Path, runs: set[str]) -> None:
    """Metrics and run file of a folder, under the name of its run, or its own where that says too little."""
    name = next(iter(runs)) if len(runs) == 1 else folder.resolve().name
    if name in sources.metrics or name in sources.settings:
        name = f"{name} ({folder})"
    if (folder / METRICS_FILE).is_file():
        sources.metrics[name], read = read_metrics(folder / METRICS_FILE)
        sources.files.append(read)
    if (folder / RUN_FILE).is_file():
        content = (folder / RUN_FILE).read_bytes()
        sources.settings[name] = content.decode(errors="replace")
        sources.files.append(Read(folder / RUN_FILE, hashlib.sha256(content).hexdigest(), 1))


def _nothing(where: str, rule: str) -> Mistake:
    return Mistake(where, None, rule, "evaluate a checkpoint first, or name the results file")
