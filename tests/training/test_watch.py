from pathlib import Path
from typing import Any

import pytest

from megatron_mep.config.errors import TrainingError
from megatron_mep.training.watch import Seen, Verdict, Watch
from tests.support.tiny import training_config

NAN, INF = float("nan"), float("inf")
CALM = [3.0, 3.1, 2.9, 3.0]
NOTHING = Seen()


def watch(seen: Seen = NOTHING, max_consecutive: int = 3, **spike: Any) -> Watch:
    spike = {"window": 8, "deviations": 4.0, **spike}
    return Watch(training_config(non_finite={"max_consecutive": max_consecutive}, spike=spike), seen)


def after(losses: list[float], **options: Any) -> Watch:
    judged = watch(**options)
    for loss in losses:
        judged.judge(loss, 1.0)
    return judged


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (INF, 1.0), (-INF, 1.0), (3.0, NAN), (3.0, INF), (NAN, NAN)])
def test_what_is_not_finite_is_skipped(loss: float, norm: float):
    judged = after(CALM)
    assert judged.judge(loss, norm) is Verdict.NOT_FINITE
    assert not judged.verdict.is_taken
    assert judged.metrics == {"skipped_steps": 1, "loss_spikes": 0}
    assert judged.told.startswith(f"not finite, skipped: loss {loss:.4f}")
    assert ("gradient not finite" in judged.told) == (norm != 1.0)
    assert judged.judge(3.0, 1.0) is Verdict.TAKEN
    assert judged.told == ""


def test_a_spike_is_taken_unless_it_is_to_be_skipped():
    assert after(CALM).judge(9.0, 1.0) is Verdict.SPIKE_TAKEN
    skipping = after([*CALM, 9.0], skip=True)
    assert skipping.verdict is Verdict.SPIKE_SKIPPED
    assert skipping.metrics == {"skipped_steps": 1, "loss_spikes": 1}
    assert "above 3.2965" in skipping.told
    assert "1 in a row, 1 so far" in skipping.told


def test_losses_that_are_not_finite_are_not_compared_with():
    assert after([*CALM, NAN, INF]).seen.recent_losses == tuple(CALM)


def test_a_run_is_over_after_so_many_steps_in_a_row_and_no_sooner():
    judged = after([*CALM, NAN, NAN, 3.0, NAN, NAN])
    assert not judged.is_over
    judged.judge(NAN, 1.0)
    assert judged.is_over
    assert judged.metrics["skipped_steps"] == 5


def test_spikes_that_are_skipped_count_in_the_row():
    judged = after([*CALM, 9.0, NAN, 9.0], skip=True)
    assert judged.is_over
    (mistake,) = judged.error(7, None).mistakes
    assert "training.spike.skip" in mistake.remedy


def test_the_end_names_step_checkpoint_and_remedies():
    error = after([NAN] * 3).error(120, Path("runs/a/checkpoints/step_00000100"))
    assert isinstance(error, TrainingError)
    assert error.exit_code == 3
    (mistake,) = error.mistakes
    assert (mistake.key, mistake.value) == ("training.non_finite.max_consecutive", 3)
    for said in ("step 120", "loss nan", "checkpoint is runs/a/checkpoints/step_00000100"):
        assert said in mistake.rule
    assert "training.optimizer.learning_rate below 0.01" in mistake.remedy
    assert "there is no checkpoint yet" in str(after([NAN] * 3).error(3, None))


def test_a_run_that_goes_on_judges_as_it_would_have():
    whole = after([*CALM, NAN, 9.0, 3.0, 3.0, 9.0], skip=True)
    first = after([*CALM, NAN, 9.0, 3.0], skip=True)
    second = watch(first.seen, skip=True)
    for loss in (3.0, 9.0):
        second.judge(loss, 1.0)
    assert second.seen == whole.seen
    assert second.told == whole.told
