"""What a run measures, written by one rank: metrics.jsonl, which a program reads, and TensorBoard events."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
BY_POSITION = "validation loss by position"
Metrics = dict[str, float]


class MetricsWriter:
    """Writes the metrics of steps, each against optimizer steps and against consumed tokens.

    A run that is started again from step `resumed_step` drops what an earlier attempt wrote of later steps.
    """

    def __init__(self, folder: Path, resumed_step: int, tensorboard: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / METRICS_FILE
        kept = _records_until(file, resumed_step)
        _rewrite(file, kept)
        self._stream = file.open("a", encoding="utf-8")
        self._events = None
        if tensorboard:
            resumed_tokens = kept[-1]["consumed_tokens"] if kept else 0
            self._events = _Events(folder / TENSORBOARD_FOLDER, resumed_step, resumed_tokens)

    def write(self, step: int, consumed_tokens: int, metrics: Metrics, encoding: Metrics) -> None:
        """One record; `metrics` are named as in metrics.jsonl, `encoding` by layer and weight.

        What is not finite is null in metrics.jsonl.
        """
        self._stream.write(_line({"step": step, "consumed_tokens": consumed_tokens, **metrics}))
        self._stream.flush()
        if self._events is not None:
            self._events.write(step, consumed_tokens, metrics, encoding)

    def write_by_position(self, step: int, ends: Sequence[int], losses: Sequence[float | None]) -> None:
        """Validation losses in ranges of positions, each told by its last one; a line of TensorBoard for each."""
        if self._events is not None:
            self._events.write_by_position(step, ends, losses)

    def close(self) -> None:
        """Puts everything on the disk."""
        os.fsync(self._stream.fileno())
        self._stream.close()
        if self._events is not None:
            self._events.close()


class _Events:
    """TensorBoard's two axes, each in files of its own: a restart drops all that lies beyond one number of a file."""

    def __init__(self, folder: Path, resumed_step: int, resumed_tokens: int) -> None:
        self._by_step = SummaryWriter(str(folder / "steps"), purge_step=resumed_step + 1)
        self._by_tokens = SummaryWriter(str(folder / "tokens"), purge_step=resumed_tokens + 1)
        # one chart of all ranges, among the custom scalars
        self._by_step.add_custom_scalars_multilinechart([f"{BY_POSITION}/.*"], "validation", "loss by position")

    def write(self, step: int, consumed_tokens: int, metrics: Metrics, encoding: Metrics) -> None:
        for name, value in metrics.items():
            self._by_step.add_scalar(f"by step/{name}", value, step)
            self._by_tokens.add_scalar(f"by tokens/{name}", value, consumed_tokens)
        for name, value in encoding.items():
            self._by_step.add_scalar(f"encoding/{name}", value, step)

    def write_by_position(self, step: int, ends: Sequence[int], losses: Sequence[float | None]) -> None:
        width = len(str(ends[-1]))
        for first, last, loss in zip((1, *(end + 1 for end in ends)), ends, losses, strict=False):
            # in the order of positions where tags are sorted as text
            range_of = f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
            self._by_step.add_scalar(f"{BY_POSITION}/{range_of}", math.nan if loss is None else loss, step)

    def close(self) -> None:
        self._by_step.close()
        self._by_tokens.close()


def _records_until(file: Path, step: int) -> list[dict[str, Any]]:
    """The whole records up to a step; a kill can leave half a line."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [record for record in map(_record_in, lines) if record is not None and record["step"] <= step]


def _record_in(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _rewrite(file: Path, records: list[dict[str, Any]]) -> None:
    beside = file.with_name(f".{file.name}.partial")
    beside.write_text("".join(map(_line, records)), encoding="utf-8")
    beside.replace(file)


def _line(record: dict[str, Any]) -> str:
    """One line; JSON has no word for a number that is not finite."""
    known = {name: None if isinstance(value, float) and not math.isfinite(value) else value
             for name, value in record.items()}  # fmt: skip
    return json.dumps(known, allow_nan=False) + "\n"
