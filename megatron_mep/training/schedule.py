"""The learning rate's course, by Megatron-core's scheduler."""

from typing import Any

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from megatron_mep.training.config import Decaying, TrainingConfig, WarmupStableDecay

STYLES = {"constant": "constant", "cosine": "cosine", "linear": "linear", "wsd": "WSD"}
"""Our names of the schedules, and Megatron-core's."""


def build_scheduler(optimizer: Any, training: TrainingConfig) -> OptimizerParamScheduler:
    """The scheduler of an optimizer's parameter groups, before the first step.

    Call `step(1)` ahead of each optimizer step: step t then runs at the rate of t, the last one at the lowest.
    """
    schedule, highest = training.schedule, training.optimizer.learning_rate
    lowest = schedule.min_learning_rate if isinstance(schedule, Decaying) else 0.0
    for group in optimizer.param_groups:
        # a group with a rate of its own falls by the same factor
        group["min_lr"] = lowest * group["max_lr"] / highest
    stable = schedule if isinstance(schedule, WarmupStableDecay) else None
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=highest,
        min_lr=lowest,
        lr_warmup_steps=schedule.warmup_steps,
        # the scheduler wants the decay to end after the warm-up, also where all steps warm up
        lr_decay_steps=max(training.steps, schedule.warmup_steps + 1),
        lr_decay_style=STYLES[schedule.name],
        start_wd=training.optimizer.weight_decay,
        end_wd=training.optimizer.weight_decay,
        wd_incr_steps=training.steps,
        wd_incr_style="constant",
        wsd_decay_steps=stable and stable.decay_steps,
        lr_wsd_decay_style=stable and stable.decay,
    )
