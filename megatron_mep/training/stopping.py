"""Why a run stops before its last step: any rank may be asked to, and all of them agree on it between two steps."""

import os
import re
import time
from pathlib import Path

import torch
from torch import distributed

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.training.signals import ASKING, Signals

STOP_FILE = "STOP"
CLOCK = "the clock"
REASONS = (*(number.name for number in ASKING), STOP_FILE, CLOCK)
END_TIME = "MEP_END_TIME"
"""The variable in which a batch script says when to stop, in seconds since 1970."""


class Stopped(SystemExit):
    """Ends a run that has saved and wants to go on, by an exit code of its own: sysexits' EX_TEMPFAIL, 75."""

    def __init__(self, reason: str) -> None:
        super().__init__(os.EX_TEMPFAIL)
        self.reason = reason


class Stopping:
    """What asks this rank to stop, and what all ranks have agreed on.

    Args:
        signals: Those that this process hears.
        file: Asks as long as it is there; `None` on ranks that need not look.
        end_s: When the run is to stop, in seconds since 1970.
    """

    def __init__(self, signals: Signals, file: Path | None = None, end_s: float | None = None) -> None:
        self.reason: str | None = None
        """What all ranks have agreed to stop for, one of `REASONS`."""
        self._signals, self._file, self._end_s = signals, file, end_s

    def asked(self) -> list[float]:
        """1 for each of `REASONS` that this rank knows of, to be summed over all ranks."""
        file = self._file is not None and self._file.exists()
        late = self._end_s is not None and time.time() >= self._end_s
        here = {self._signals.heard, STOP_FILE if file else None, CLOCK if late else None}
        return [float(reason in here) for reason in REASONS]

    def agree(self, asked: list[float]) -> None:
        """Takes the sum of what all ranks were asked."""
        self.reason = self.reason or next((reason for reason, ranks in zip(REASONS, asked, strict=True) if ranks), None)

    def agree_now(self, device: torch.device) -> None:
        """The same by an all-reduce of its own; collective."""
        asked = torch.tensor(self.asked(), dtype=torch.float64, device=device)
        distributed.all_reduce(asked)
        self.agree(asked.tolist())


def end_time(started_s: float, after_minutes: float | None, stated: str | None) -> float | None:
    """The earlier of two ends, in seconds since 1970: some minutes after the start, and `MEP_END_TIME` as it is set."""
    if stated and not re.fullmatch(r"\d+(\.\d+)?", stated):
        remedy = "unset it, or set it in the job's script, for example to $(($(date +%s) + 3600))"
        raise ConfigError(Mistake(END_TIME, stated, "must be a number of seconds since 1970", remedy))
    ends = [float(stated)] if stated else []
    ends += [started_s + 60 * after_minutes] if after_minutes is not None else []
    return min(ends, default=None)
