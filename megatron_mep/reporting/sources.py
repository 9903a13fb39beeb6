"""Finds and reads what belongs into a report: rows of every kind, and the run files and metrics beside them."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from megatron_mep.checkpoint.files import step_folder, steps_in
from megatron_mep.checkpoint.written_by import FILE as WRITTEN_BY
from megatron_mep.checkpoint.written_by import Writer
from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.reporting.records import Read, Record, read_metrics, read_rows, read_summary
from megatron_mep.reporting.rows import AnyRow, Row, TrainingPoint
from megatron_mep.reporting.studies import Summary

ROW_FOLDERS = ("evaluation", "probes", "analysis")
"""Where a run folder has its rows."""
METRICS_FILE = "metrics.jsonl"
VALIDATION_FILE = "validation.jsonl"
RUN_FILE = "run.yaml"
SUMMARY_FILE = "summary.json"
CHECKPOINTS = "checkpoints"

Kind = TypeVar("Kind", bound=AnyRow)


@dataclass(frozen=True)
class Sources:
    """Everything read for a report; what is of a run stands under its name."""

    records: list[Record] = field(default_factory=list)
    studies: list[Summary] = field(default_factory=list)
    metrics: dict[str, list[TrainingPoint]] = field(default_factory=dict)
    validations: dict[str, list[Row]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """Resolved run files, as YAML text."""
    checkpoints: dict[str, Path] = field(default_factory=dict)
    """The last one by which a run was measured, of those folders that hold rows of a single run; it may be gone."""
    writers: dict[str, list[Writer]] = field(default_factory=dict)
    """The programs that trained the run, one after the other, where its checkpoints tell."""
    files: list[Read] = field(default_factory=list)

    def rows(self, kind: type[Kind]) -> list[Kind]:
        """The rows of one kind."""
        return [record.row for record in self.records if isinstance(record.row, kind)]


def read_sources(results: Sequence[Path]) -> Sources:
    """What the given results files and folders hold; a `DataError` where nothing is found or a line is broken.

    A run folder stands for its rows in `evaluation/`, `probes/` and `analysis/`, and for `metrics.jsonl`,
    `validation.jsonl` and `run.yaml`; a results file brings along these from the run folder that it is in; the folder
    of a study stands for its arms and its summary.
    """
    sources = Sources()
    run_folders: dict[Path, list[AnyRow]] = {}
    for path in _results_files(results):
        records, read = read_rows(path)
        sources.records.extend(records)
        sources.files.append(read)
        run_folders.setdefault(_run_folder(path), []).extend(record.row for record in records)
    if not sources.records:
        raise DataError(_nothing(", ".join(map(str, results)), "must hold at least one result row"))
    for file in (path / SUMMARY_FILE for path in dict.fromkeys(results)):
        if file.is_file():
            summary, read = read_summary(file)
            sources.studies.append(summary)
            sources.files.append(read)
    for folder, rows in run_folders.items():
        _add_run(sources, folder, rows)
    return sources


def _results_files(results: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    mistakes: list[Mistake] = []
    for path in results:
        files = list(_files_in(path)) if path.is_dir() else [path] if path.is_file() else []
        found.update(dict.fromkeys(files))
        if path.is_dir() and not files:
            rule = f"must hold {' or '.join(f'{name}/*.jsonl' for name in ROW_FOLDERS)}, as a run folder does, or such"
            mistakes.append(_nothing(str(path), f"{rule} folders, as that of a study does"))
        elif not files:
            mistakes.append(_nothing(str(path), "must be a results file or a run folder, and does not exist"))
    if mistakes:
        raise DataError(mistakes)
    return list(found)


def _files_in(folder: Path) -> Iterator[Path]:
    """The rows of a run folder, or of all run folders in it."""
    is_run = any((folder / name).is_dir() for name in ROW_FOLDERS)
    runs = [folder] if is_run else sorted(file.parent for file in folder.glob(f"*/{RUN_FILE}"))
    for run in runs:
        for name in ROW_FOLDERS:
            yield from sorted((run / name).glob("*.jsonl"))


def _run_folder(results_file: Path) -> Path:
    folder = results_file.parent
    return folder.parent if folder.name in ROW_FOLDERS else folder


def _add_run(sources: Sources, folder: Path, rows: Sequence[AnyRow]) -> None:
    """What else is in a folder, under the name of its run, or its own where that says too little."""
    runs = {row.run for row in rows}
    name = next(iter(runs)) if len(runs) == 1 else folder.resolve().name
    if name in sources.metrics or name in sources.settings:
        name = f"{name} ({folder})"
    if (folder / METRICS_FILE).is_file():
        sources.metrics[name], read = read_metrics(folder / METRICS_FILE)
        sources.files.append(read)
    if (folder / VALIDATION_FILE).is_file():
        records, read = read_rows(folder / VALIDATION_FILE)
        sources.validations[name] = [record.row for record in records if isinstance(record.row, Row)]
        sources.files.append(read)
    if (folder / RUN_FILE).is_file():
        content = (folder / RUN_FILE).read_bytes()
        sources.settings[name] = content.decode(errors="replace")
        sources.files.append(Read(folder / RUN_FILE, hashlib.sha256(content).hexdigest(), 1))
    root = folder / CHECKPOINTS
    measured = [row.step for row in rows if row.checkpoint is not None]
    if len(runs) == 1 and measured:
        sources.checkpoints[name] = step_folder(root, max(measured))
    told = [step_folder(root, step) / WRITTEN_BY for step in steps_in(root)]
    written = [json.loads(file.read_text(encoding="utf-8")) for file in told if file.is_file()]
    if written:
        sources.writers[name] = [writer for writer, _ in groupby(map(Writer.of, written))]


def _nothing(where: str, rule: str) -> Mistake:
    return Mistake(where, None, rule, "evaluate a checkpoint first, or name the results file")
