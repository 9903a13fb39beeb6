"""Which steps of a run are taken, by their loss and gradient: every rank decides alike, from the same numbers."""

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from megatron_mep.checkpoint.progress import Progress
from megatron_mep.config.errors import Mistake, TrainingError
from megatron_mep.training.config import TrainingConfig
from megatron_mep.training.metrics import Metrics
from megatron_mep.training.spikes import SpikeWatch


class Verdict(Enum):
    """What becomes of a step."""

    TAKEN = "taken"
    SPIKE_TAKEN = "a spike, taken"
    SPIKE_SKIPPED = "a spike, skipped"
    NOT_FINITE = "not finite, skipped"

    @property
    def is_taken(self) -> bool:
        """Whether weights are updated."""
        return self in (Verdict.TAKEN, Verdict.SPIKE_TAKEN)


@dataclass(frozen=True)
class Seen:
    """What a run has seen of its steps; a checkpoint holds it, so that a run that goes on decides as it would have."""

    skipped_steps: int = 0
    loss_spikes: int = 0
    recent_losses: tuple[float, ...] = ()

    @classmethod
    def told_by(cls, reached: Progress) -> "Seen":
        """What a checkpoint holds."""
        return cls(reached.skipped_steps, reached.loss_spikes, reached.recent_losses)


class Watch:
    """Judges one step after the other."""

    def __init__(self, training: TrainingConfig, seen: Seen) -> None:
        self._training = training
        self._skipped, self._spikes = seen.skipped_steps, seen.loss_spikes
        self._losses = SpikeWatch(training.spike, seen.recent_losses)
        self._in_a_row = 0
        self.loss = math.nan
        """The last step's, in nats per token."""
        self.verdict = Verdict.TAKEN
        """On the last step."""
        self.told = ""
        """What a person is to know of the last step; empty where it was like any other."""

    @property
    def seen(self) -> Seen:
        """What a checkpoint is to hold."""
        return Seen(self._skipped, self._spikes, self._losses.recent)

    @property
    def metrics(self) -> Metrics:
        """Counts since the first step of the run."""
        return {"skipped_steps": self._skipped, "loss_spikes": self._spikes}

    @property
    def is_over(self) -> bool:
        """Whether the run must end: too many steps in a row were skipped."""
        return self._in_a_row >= self._training.non_finite.max_consecutive

    def judge(self, loss: float, gradient_norm: float) -> Verdict:
        """Counts a step in, by its mean loss over all ranks and a bound of its gradient's norm."""
        bound = self._losses.bound
        self.loss, self.verdict = loss, self._verdict(loss, gradient_norm, bound)
        if math.isfinite(loss):
            self._losses.add(loss)
        self._spikes += self.verdict in (Verdict.SPIKE_TAKEN, Verdict.SPIKE_SKIPPED)
        self._skipped += not self.verdict.is_taken
        self._in_a_row = 0 if self.verdict.is_taken else self._in_a_row + 1
        self.told = self._in_words(gradient_norm, bound)
        return self.verdict

    def error(self, step: int, checkpoint: Path | None) -> TrainingError:
        """What ends the run after `step`."""
        limit, rate = self._training.non_finite.max_consecutive, self._training.optimizer.learning_rate
        kept = f"the last whole checkpoint is {checkpoint}" if checkpoint else "there is no checkpoint yet"
        remedy = (
            "raise training.spike.deviations, or set training.spike.skip to false"
            if self.verdict is Verdict.SPIKE_SKIPPED
            else f"train under a new name with training.optimizer.learning_rate below {rate:g}, a longer "
            "training.schedule.warmup_steps or training.precision=fp32; only where a device or a file was at fault, "
            "mend it and start the run again: it goes on from the checkpoint"
        )
        rule = f"steps in a row were skipped, the last of them step {step} ({self.told}); {kept}"
        return TrainingError(Mistake("training.non_finite.max_consecutive", limit, rule, remedy))

    def _verdict(self, loss: float, gradient_norm: float, bound: float) -> Verdict:
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            return Verdict.NOT_FINITE
        if loss <= bound:
            return Verdict.TAKEN
        return Verdict.SPIKE_SKIPPED if self._training.spike.skip else Verdict.SPIKE_TAKEN

    def _in_words(self, gradient_norm: float, bound: float) -> str:
        if self.verdict is Verdict.TAKEN:
            return ""
        gradient = "" if math.isfinite(gradient_norm) else ", gradient not finite"
        above = f", above {bound:.4f}" if self.verdict is not Verdict.NOT_FINITE else ""
        count = self._spikes if self.verdict.is_taken else self._skipped
        row = "" if self.verdict.is_taken else f"{self._in_a_row} in a row, "
        return f"{self.verdict.value}: loss {self.loss:.4f}{above}{gradient}; {row}{count} so far"
