"""Losses that are out of line with those before: a bound that single outliers do not move."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from megatron_mep.training.config import SpikeConfig

NORMAL = 1.4826
"""Standard deviation over median absolute deviation of normally distributed numbers."""
SMALLEST = 1e-3
"""The least standard deviation that is believed, as a share of the median: losses that stand still vary by rounding."""


class SpikeWatch:
    """The losses of the last steps, and how high the next one may be."""

    def __init__(self, config: SpikeConfig, recent: Iterable[float] = ()) -> None:
        self._config = config
        self._recent = deque(recent, maxlen=config.window)

    @property
    def recent(self) -> tuple[float, ...]:
        """The losses that are remembered, oldest first."""
        return tuple(self._recent)

    @property
    def bound(self) -> float:
        """Above it a loss is a spike: infinite until half of the window is there."""
        if 2 * len(self._recent) < self._config.window:
            return math.inf
        middle = median(self._recent)
        deviation = NORMAL * median(abs(loss - middle) for loss in self._recent)
        return middle + self._config.deviations * max(deviation, SMALLEST * abs(middle))

    def add(self, loss: float) -> None:
        """Remembers a finite loss, a spike's too: a rise that lasts is the new level after half a window."""
        self._recent.append(loss)
