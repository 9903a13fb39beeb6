"""The `job` section of a run file: how long its processes run, and how long they wait for each other."""

from pydantic import PositiveFloat

from megatron_mep.config.base import Config

MARGIN_S = 300.0
"""By which a collective waits longer than the watchdog."""


class JobConfig(Config):
    """The life of one job; a run may take several, and may change these keys between them."""

    stop_after_minutes: PositiveFloat | None = None
    """Own clock: at the next step's end the run saves, and ends with exit code 75, to be started again. The variable
    MEP_END_TIME, in seconds since 1970, does the same at a time; the earlier of both counts."""
    startup_minutes: PositiveFloat = 15.0
    """How long the first ranks wait for the last one to start; then they end, and name those that are missing."""
    hang_minutes: PositiveFloat = 30.0
    """Longest time that a rank may spend on one step, validation, save or part of the start-up. Then all ranks write
    their stacks into the run's folder `stacks` and end with exit code 70."""

    @property
    def startup_s(self) -> float:
        """`startup_minutes` in seconds."""
        return 60 * self.startup_minutes

    @property
    def hang_s(self) -> float:
        """`hang_minutes` in seconds."""
        return 60 * self.hang_minutes

    @property
    def collective_timeout_s(self) -> float:
        """After which a collective fails by itself, and leaves no stacks: the watchdog comes first."""
        return self.hang_s + MARGIN_S
