"""The training loop: steps, and what is due between them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from megatron_mep.parallel.groups import Groups
from megatron_mep.training.config import LoggingConfig, TrainingConfig
from megatron_mep.training.gradients import measured
from megatron_mep.training.metrics import Metrics, MetricsWriter
from megatron_mep.training.progress import Progress
from megatron_mep.training.step import MicroBatch, micro_batch_starts, train_step
from megatron_mep.training.stopping import Stopping
from megatron_mep.training.watch import Watch

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

TOLD = {
    "loss": ("loss", ".4f"),
    "validation_loss": ("validation", ".4f"),
    "learning_rate": ("lr", ".2e"),
    "grad_norm": ("grad norm", ".3f"),
    "tokens_per_s": ("tokens/s", ",.0f"),
    "mfu_causal": ("MFU", ".1%"),
    "attention_kept": ("attention", ".1%"),
    "skipped_steps": ("skipped", ".0f"),
    "loss_spikes": ("spikes", ".0f"),
}
"""The metrics that a person who waits is told, by their names and formats there; counts only where there are any."""


@dataclass
class Job:
    """The parts of a training run, built by the composition root."""

    engine: "DeepSpeedEngine"
    scheduler: OptimizerParamScheduler
    micro_batch: MicroBatch
    groups: Groups
    training: TrainingConfig
    logging: LoggingConfig
    flops_per_token: float
    """Of the whole model, forward and backward."""
    metrics: MetricsWriter | None
    """On the one rank that writes."""
    progress: Progress
    is_validation_due: Callable[[int], bool]
    validate: Callable[[int], Metrics]
    """Collective: perplexity on held-out text after a step."""
    is_save_due: Callable[[int], bool]
    save: Callable[[int], None]
    """Collective: a checkpoint after a step."""
    publish: Callable[[], None]
    """Collective: puts a checkpoint in place that was written behind the steps, where it is whole."""
    last_checkpoint: Callable[[], Path | None]
    """The newest whole one."""
    watch: Watch
    """Judges the steps; the same on all ranks."""
    stopping: Stopping
    """What this rank, and then all of them, are asked to stop for."""
    came_to: Callable[[int], None]
    """Told of every step that is done, and again once all is done that was due after it."""
    encoding_metrics: Callable[[], Metrics]
    """Collective: the encoding's learned weights."""
    attention_metrics: Callable[[], Metrics]
    """Collective: the share of scores that attention computed since the last call, and what it dropped."""


def train(job: Job, done_steps: int) -> float:
    """Runs the steps after `done_steps`, all or until the ranks are asked to stop; the last one's loss, nats per token.

    A stop waits for a step that is taken, as a checkpoint does.
    """
    job.stopping.agree_now(job.groups.device)
    saves, stops = False, job.stopping.reason is not None
    clock = _Clock(job, done_steps)
    for step in range(done_steps + 1, job.training.steps + 1):
        if stops:
            break
        # the rate of this step, not of the one before
        job.scheduler.step(1)
        starts = micro_batch_starts(step, job.training, job.groups)
        train_step(job.engine, job.micro_batch, starts, job.groups, partial(_is_taken, job))
        job.progress.advance()
        job.came_to(step)
        _tell_verdict(job, step)
        validates = job.is_validation_due(step)
        is_last = step == job.training.steps
        records = validates or step % job.logging.interval == 0 or is_last or bool(job.watch.told)
        metrics = _training_metrics(job, clock, step) if records else {}
        with clock.stopped():
            stops = job.stopping.reason is not None and job.watch.verdict.is_taken and not is_last
            if stops:
                # who asks may give little time: all else that is due comes after
                job.save(step)
            if validates:
                metrics |= job.validate(step)
            if records:
                _record(job, step, metrics, clock.left_s(step))
            job.publish()
            if job.watch.is_over:
                raise job.watch.error(step, job.last_checkpoint())
            # one that is due while steps are skipped waits for a step that is taken: it might crowd out a better one
            saves = saves or job.is_save_due(step)
            if saves and not stops and (job.watch.verdict.is_taken or is_last):
                job.save(step)
                saves = False
        job.came_to(step)
    return job.watch.loss


def _is_taken(job: Job, own_loss: Tensor) -> bool:
    asked = job.stopping.asked()
    loss, gradient_norm = measured(job.engine, own_loss, asked)
    job.stopping.agree(asked)
    return job.watch.judge(loss, gradient_norm).is_taken


def _tell_verdict(job: Job, step: int) -> None:
    if job.watch.told:
        job.progress.say(f"step {step}: {job.watch.told}")


def _training_metrics(job: Job, clock: "_Clock", step: int) -> Metrics:
    if job.groups.device.type == "cuda":
        # the update may still be under way
        torch.cuda.synchronize(job.groups.device)
    tokens_per_s = clock.tokens_per_s(step)
    tflops = tokens_per_s * job.flops_per_token / job.groups.world_size / 1e12
    # of a skipped step the engine knows none
    grad_norm = job.engine.get_global_grad_norm() if job.watch.verdict.is_taken else None
    metrics = {
        "loss": job.watch.loss,
        "learning_rate": job.engine.optimizer.param_groups[0]["lr"],
        "tokens_per_s": tokens_per_s,
        "tflops_per_device_causal": tflops,
    }
    if grad_norm is not None:
        metrics["grad_norm"] = float(grad_norm)
    if job.logging.peak_tflops is not None:
        metrics["mfu_causal"] = tflops / job.logging.peak_tflops
    return metrics | job.watch.metrics | job.attention_metrics()


def _record(job: Job, step: int, metrics: Metrics, left_s: float) -> None:
    consumed_tokens = step * job.training.global_batch_size * job.training.seq_length
    encoding = job.encoding_metrics()
    if job.metrics is not None:
        job.metrics.write(step, consumed_tokens, metrics, encoding)
    shown = {name: value for name, value in metrics.items() if value or name not in job.watch.metrics}
    told = {name: format(shown[metric], style) for metric, (name, style) in TOLD.items() if metric in shown}
    job.progress.tell(step, told, left_s)


class _Clock:
    """Time spent in training steps alone, since the last look."""

    def __init__(self, job: Job, done_steps: int) -> None:
        self._tokens_per_step = job.training.global_batch_size * job.training.seq_length
        self._steps = job.training.steps
        self._since_s = time.perf_counter()
        self._since_step = done_steps
        self._step_s = 0.0

    def tokens_per_s(self, step: int) -> float:
        """Training tokens of all ranks in a second, over the steps since the last call."""
        now = time.perf_counter()
        self._step_s = (now - self._since_s) / (step - self._since_step)
        self._since_s, self._since_step = now, step
        return self._tokens_per_step / self._step_s

    def left_s(self, step: int) -> float:
        """Time of the steps that are left, at the last speed."""
        return (self._steps - step) * self._step_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leaves out what happens inside."""
        start = time.perf_counter()
        yield
        self._since_s += time.perf_counter() - start
