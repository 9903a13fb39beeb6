"""A training loop whose engine, clock, files and signals are stand-ins that keep what they are told."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from megatron_mep.attention.work import Work
from megatron_mep.parallel.groups import Groups
from megatron_mep.training import loop
from megatron_mep.training.attention_metrics import attention_metrics
from megatron_mep.training.config import LoggingConfig
from megatron_mep.training.loop import Job, train
from megatron_mep.training.signals import Signals
from megatron_mep.training.stopping import Stopping
from megatron_mep.training.watch import Seen
from megatron_mep.training.watch import Watch as StepWatch
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
