import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from megatron_mep.attention.work import Work
from megatron_mep.config.errors import TrainingError
from megatron_mep.parallel.groups import Groups
from megatron_mep.training import loop
from megatron_mep.training.attention_metrics import attention_metrics
from megatron_mep.training.config import LoggingConfig
from megatron_mep.training.loop import Job, train
from megatron_mep.training.signals import Signals
from megatron_mep.training.stopping import Stopping
from megatron_mep.training.watch import Seen
from megatron_mep.training.watch import Watch as StepWatch
from tests.support.distributed import joined, run
from tests.support.tiny import SEQ_LENGTH, samples, training_config

STEPS, STEP_S = 7, 2.0
TOKENS_PER_STEP = 4 * SEQ_LENGTH


class Watch:
    """A clock that stands still between the events of a run, and the events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[Any] = []

    def perf_counter(self) -> float:
        return self.now

    def goes_on(self, seconds: float, event: Any) -> None:
        self.now += seconds
        self.events.append(event)


class Engine:
    """Its loss is the number of the step, plus the rank; NaN on the last rank in steps that are `faulty`."""

    def __init__(self, watch: Watch, done_steps: int, here: Groups, faulty: tuple[int, ...]) -> None:
        self._watch, self._step, self._rank = watch, done_steps + 1, here.data_rank
        self._faulty = faulty if here.data_rank == here.data_size - 1 else ()
        self.module = nn.Linear(1, 1)
        self.optimizer = SimpleNamespace(param_groups=[{"lr": None}])

    def train(self) -> None: ...

    def __call__(self, _inputs: torch.Tensor, _position_ids: None, _mask: None, labels: torch.Tensor, **_: int):
        return torch.full(labels.shape, math.nan if self._step in self._faulty else float(self._step + self._rank))

    def zero_optimization(self) -> bool:
        return False

    def zero_optimization_partition_gradients(self) -> bool:
        return False

    def zero_grad(self) -> None:
        self._watch.goes_on(STEP_S, ("skip", self._step, self.optimizer.param_groups[0]["lr"]))
        self._step += 1

    def backward(self, loss: torch.Tensor) -> None: ...

    def step(self) -> None:
        self._watch.goes_on(STEP_S, ("step", self._step, self.optimizer.param_groups[0]["lr"]))
        self._step += 1

    def was_step_applied(self) -> bool:
        return True

    def get_global_grad_norm(self) -> torch.Tensor:
        return torch.tensor(0.25)


class Scheduler:
    """Its rate is the number of the step."""

    def __init__(self, engine: Engine, done_steps: int) -> None:
        self._groups, self._step = engine.optimizer.param_groups, done_steps

    def step(self, increment: int) -> None:
        self._step += increment
        self._groups[0]["lr"] = self._step


class Shown:
    """Stands for the metrics' file and the progress of a run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.records: dict[int, tuple[int, dict[str, float], dict[str, float]]] = {}
        self.left_s: dict[int, float] = {}
        self.told: dict[int, dict[str, str]] = {}
        self.said: list[str] = []
        self.advanced = 0
        self.came_to: list[int] = []

    def write(self, step: int, consumed_tokens: int, metrics: dict[str, float], encoding: dict[str, float]) -> None:
        self.records[step] = (consumed_tokens, metrics, encoding)
        self._watch.goes_on(10, ("record", step))

    def advance(self) -> None:
        self.advanced += 1

    def tell(self, step: int, told: dict[str, str], left_s: float) -> None:
        self.told[step], self.left_s[step] = told, left_s

    def say(self, line: str) -> None:
        self.said.append(line)


class StopIn(Stopping):
    """Asked on the last rank in the midst of a step; step 0 is the start-up."""

    def __init__(self, here: Groups, done_steps: int, step: int | None) -> None:
        super().__init__(Signals())
        self._left = math.inf if step is None or here.data_rank < here.data_size - 1 else max(step - done_steps, 0)

    def asked(self) -> list[float]:
        self._signals.heard = "SIGUSR1" if self._left <= 0 else None
        self._left -= 1
        return super().asked()


def trained(
    here: Groups,
    done_steps: int = 0,
    faulty: tuple[int, ...] = (),
    max_consecutive: int = 10,
    stop_in: int | None = None,
    **logging: Any,
) -> tuple[float, Watch, Shown]:
    watch = Watch()
    shown = Shown(watch)
    engine = Engine(watch, done_steps, here, faulty)
    training = training_config(steps=STEPS, non_finite={"max_consecutive": max_consecutive})

    behind: list[int] = []

    def save(step: int) -> None:
        watch.goes_on(1000, ("save", step))
        behind.append(step)

    def validate(step: int) -> dict[str, float]:
        watch.goes_on(100, ("validate", step))
        return {"validation_loss": 9.0}

    job = Job(
        engine=engine,
        scheduler=Scheduler(engine, done_steps),
        micro_batch=lambda first: samples(first, 1),
        groups=here,
        training=training,
        logging=LoggingConfig(interval=3, **logging),
        flops_per_token=1e12,
        metrics=shown,
        progress=shown,
        is_validation_due=lambda step: step in (2, 6),
        validate=validate,
        is_save_due=lambda step: step in (4, STEPS),
        save=save,
        publish=lambda: watch.goes_on(10000, ("publish", behind.pop())) if behind else None,
        last_checkpoint=lambda: Path("checkpoints/step_00000001"),
        watch=StepWatch(training, Seen()),
        stopping=StopIn(here, done_steps, stop_in),
        came_to=shown.came_to.append,
        encoding_metrics=lambda: {"layer_01/slope/min": 1.0},
        attention_metrics=lambda: attention_metrics(Work(kept_pairs=1, causal_pairs=4, dropped=1e-7)),
    )
    with patch.object(loop, "time", watch):
        return train(job, done_steps), watch, shown


@pytest.mark.parametrize("done_steps", [0, 4])
def test_what_is_due_is_done_between_steps(done_steps: int):
    run(_due, 1, done_steps)


def _due(done_steps: int):
    _, watch, shown = trained(joined(), done_steps)
    after = {
        2: [("validate", 2), ("record", 2)],
        3: [("record", 3)],
        4: [("save", 4)],
        5: [("publish", 4)] if done_steps < 4 else [],
        6: [("validate", 6), ("record", 6)],
        7: [("record", 7), ("save", 7)],
    }
    expected = []
    for step in range(done_steps + 1, STEPS + 1):
        # each step runs at its own rate
        expected += [("step", step, step), *after.get(step, [])]
    assert watch.events == expected
    assert shown.advanced == STEPS - done_steps


def test_records_leave_out_the_time_of_anything_but_steps():
    run(_records, 2)


def _records():
    here = joined()
    loss, _, shown = trained(here, peak_tflops=64.0)
    # the mean over two ranks, whose losses differ by one
    assert loss == STEPS + 0.5
    assert {step: tokens for step, (tokens, _, _) in shown.records.items()} == {
        step: step * TOKENS_PER_STEP for step in (2, 3, 6, 7)
    }
    tokens_per_s = TOKENS_PER_STEP / STEP_S
    for step, (_, metrics, encoding) in shown.records.items():
        expected = {
            "loss": step + 0.5,
            "learning_rate": step,
            "grad_norm": 0.25,
            "tokens_per_s": tokens_per_s,
            "tflops_per_device_causal": tokens_per_s / 2,
            "mfu_causal": tokens_per_s / 2 / 64,
            "skipped_steps": 0,
            "loss_spikes": 0,
            "attention_kept": 0.25,
            "attention_dropped": 1e-7,
        }
        assert metrics == expected | ({"validation_loss": 9.0} if step in (2, 6) else {})
        assert encoding == {"layer_01/slope/min": 1.0}
    assert shown.left_s == {step: (STEPS - step) * STEP_S for step in shown.records}


def test_attention_that_drops_nothing_has_no_metrics():
    assert attention_metrics(Work()) == {}


def test_a_run_that_is_done_takes_no_step():
    run(_done, 1)


def _done():
    loss, watch, _ = trained(joined(), done_steps=STEPS)
    assert loss != loss
    assert watch.events == []


@pytest.mark.parametrize(
    ("asked_in", "last_events"),
    [
        pytest.param(
            3, [("step", 3, 3), ("save", 3), ("record", 3), ("publish", 3)], id="with nothing but a record due"
        ),
        pytest.param(4, [("step", 4, 4), ("save", 4), ("publish", 4)], id="with a checkpoint due"),
        pytest.param(
            6,
            [("step", 6, 6), ("save", 6), ("validate", 6), ("record", 6), ("publish", 6)],
            id="with a validation due",
        ),
        pytest.param(7, [("step", 7, 7), ("record", 7), ("save", 7)], id="in the last step"),
    ],
)
def test_a_run_that_one_rank_is_asked_to_stop_saves_first_and_ends_on_all(asked_in: int, last_events: list[Any]):
    run(_stops, 2, asked_in, last_events)


def _stops(asked_in: int, last_events: list[Any]):
    loss, watch, shown = trained(joined(), stop_in=asked_in)
    assert watch.events[-len(last_events) :] == last_events
    assert [event[1] for event in watch.events if event[0] == "save"].count(asked_in) == 1
    assert loss == asked_in + 0.5
    assert shown.came_to == [step for step in range(1, asked_in + 1) for _ in range(2)]


def test_a_run_that_is_asked_to_stop_while_it_starts_takes_no_step():
    run(_stops_before, 2)


def _stops_before():
    _, watch, _ = trained(joined(), done_steps=4, stop_in=0)
    assert watch.events == []


def test_a_stop_waits_for_a_step_that_is_taken():
    run(_stop_waits, 2)


def _stop_waits():
    _, watch, _ = trained(joined(), faulty=(3, 4), stop_in=3)
    assert watch.events[-4:] == [("record", 4), ("step", 5, 5), ("save", 5), ("publish", 5)]


def test_a_skipped_step_is_recorded_and_a_checkpoint_waits_for_one_that_is_taken():
    run(_skipped, 2)


def _skipped():
    loss, watch, shown = trained(joined(), faulty=(1, 4))
    assert watch.events == [
        ("skip", 1, 1),
        ("record", 1),
        ("step", 2, 2),
        ("validate", 2),
        ("record", 2),
        ("step", 3, 3),
        ("record", 3),
        ("skip", 4, 4),
        ("record", 4),
        ("step", 5, 5),
        ("save", 5),
        ("step", 6, 6),
        ("validate", 6),
        ("record", 6),
        ("publish", 5),
        ("step", 7, 7),
        ("record", 7),
        ("save", 7),
    ]
    assert loss == 7.5
    for step, (_, metrics, _) in shown.records.items():
        assert ("grad_norm" in metrics) == math.isfinite(metrics["loss"]) == (step not in (1, 4))
        assert metrics["skipped_steps"] == (1 if step < 4 else 2)
        assert shown.told[step]["skipped"] == str(metrics["skipped_steps"])
        assert "spikes" not in shown.told[step]
    assert shown.said == [
        f"step {step}: not finite, skipped: loss nan; 1 in a row, {n} so far" for step, n in ((1, 1), (4, 2))
    ]


def test_the_last_step_is_saved_also_where_it_is_skipped():
    run(_last, 1)


def _last():
    loss, watch, _ = trained(joined(), faulty=(STEPS,))
    assert watch.events[-3:] == [("skip", STEPS, STEPS), ("record", STEPS), ("save", STEPS)]
    assert math.isnan(loss)


def test_a_run_ends_on_all_ranks_once_the_record_is_written():
    run(_ends, 2)


def _ends():
    here = joined()
    with pytest.raises(TrainingError, match=r"step 4 .*checkpoint is checkpoints/step_00000001") as ended:
        trained(here, faulty=(2, 3, 4), max_consecutive=3)
    assert ended.value.exit_code == 3
