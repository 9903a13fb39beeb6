"""Times programs against a baseline, in pairs whose order alternates."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

import torch

Clock = Callable[[], float]
"""Seconds."""
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Pairs:
    """What was timed of a program."""

    seconds: list[tuple[float, float]]
    """Of the baseline, and of the program right before or after it."""

    @property
    def baseline_s(self) -> list[float]:
        """Of the baseline alone."""
        return [baseline for baseline, _ in self.seconds]

    @property
    def own_s(self) -> list[float]:
        """Of the program alone."""
        return [own for _, own in self.seconds]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios, program over baseline."""
        return median(self._ratios)

    @property
    def ratio_quartiles(self) -> tuple[float, float]:
        """The lower and the upper quartile of the pairs' ratios."""
        low, _, high = quantiles(self._ratios, n=4, method="inclusive")
        return low, high

    @property
    def _ratios(self) -> list[float]:
        return [own / baseline for baseline, own in self.seconds]


def clock_of(name: str, device_type: str) -> Clock:
    """The clock; on a GPU it waits for the work that was launched."""
    clock = CLOCKS[name]
    if device_type == "cpu":
        return clock

    def synchronized() -> float:
        torch.cuda.synchronize()
        return clock()

    return synchronized


def race(
    baseline: Callable[[], object], programs: Mapping[str, Callable[[], object]], num_pairs: int, clock: Clock
) -> dict[str, Pairs]:
    """One pair of each program in turn, `num_pairs` times, once all are warm."""

    def time_of(run: Callable[[], object]) -> float:
        start = clock()
        run()
        return clock() - start

    for run in (baseline, *programs.values()):
        run()
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for index in range(num_pairs):
        for name, run in programs.items():
            if index % 2:
                before = time_of(baseline)
                pairs[name].append((before, time_of(run)))
            else:
                own = time_of(run)
                pairs[name].append((time_of(baseline), own))
    return {name: Pairs(seconds) for name, seconds in pairs.items()}
