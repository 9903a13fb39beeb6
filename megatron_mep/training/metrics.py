"""What a run measures, written by one rank: metrics.jsonl, which a program reads, and TensorBoard events."""

import json
import os
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
Metrics = dict[str, float]


class MetricsWriter:
    """Writes the metrics of steps, each against optimizer steps and against consumed tokens.

    A run that is started again from step `resumed_step` drops what an earlier attempt wrote of later steps.
    """

    def __init__(self, folder: Path, resumed_step: int, tensorboard: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / METRICS_FILE
        _drop_after(self._file, resumed_step)
        self._stream = self._file.open("a", encoding="utf-8")
        self._events = (
            SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=resumed_step + 1) if tensorboard else None
        )

    def write(self, step: int, consumed_tokens: int, metrics: Metrics, encoding: Metrics) -> None:
        """One record; `metrics` are named as in metrics.jsonl, `encoding` by layer and weight."""
        self._stream.write(json.dumps({"step": step, "consumed_tokens": consumed_tokens, **metrics}) + "\n")
        self._stream.flush()
        if self._events is not None:
            for name, value in metrics.items():
                self._events.add_scalar(f"by step/{name}", value, step)
                self._events.add_scalar(f"by tokens/{name}", value, consumed_tokens)
            for name, value in encoding.items():
                self._events.add_scalar(f"encoding/{name}", value, step)

    def close(self) -> None:
        """Puts everything on the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        if self._events is not None:
            self._events.close()


def _drop_after(file: Path, step: int) -> None:
    """Keeps the whole records up to a step; a kill can also leave half a line."""
    if not file.exists():
        return
    kept = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if _step_of(line) <= step]
    beside = file.with_name(f".{file.name}.partial")
    beside.write_text("".join(kept), encoding="utf-8")
    beside.replace(file)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:
        return float("inf")
