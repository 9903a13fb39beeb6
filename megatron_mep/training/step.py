"""One optimizer step over one global batch."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megatron_mep.model.pipeline import Batch, Pipeline
from megatron_mep.parallel.groups import Groups
from megatron_mep.training.config import TrainingConfig
from megatron_mep.training.gradients import discard_gradients, sum_over_stages

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

MicroBatch = Callable[[int], Tensor]
"""First sample -> the tokens `[B, S + 1]` of the micro-batch that starts there."""


def micro_batch_starts(step: int, training: TrainingConfig, groups: Groups) -> range:
    """The first samples of this data-parallel rank's micro-batches in a step, counted from 1.

    Sample numbers run on over all steps, so a global batch holds the same samples at every data-parallel size.
    """
    first = (step - 1) * training.global_batch_size
    stride = training.micro_batch_size * groups.data_size
    return range(first + groups.data_rank * training.micro_batch_size, first + training.global_batch_size, stride)


def train_step(
    engine: "DeepSpeedEngine",
    micro_batch: MicroBatch,
    starts: range,
    groups: Groups,
    is_taken: Callable[[Tensor], bool] | None = None,
) -> Tensor:
    """One update; the mean loss of the tokens of this data-parallel rank, in nats per token.

    `is_taken` is asked for leave, with that loss, once the gradients are there; without it nothing is updated. All
    ranks must be answered alike.
    """
    engine.train()
    batches: Iterator[Batch] = ((micro_batch(start).to(groups.device), start) for start in starts)
    passes = _through_stages if groups.pipeline_size > 1 else _one_by_one
    total = passes(engine, batches, len(starts), groups)
    if is_taken is None or is_taken(total):
        engine.step()
        assert engine.was_step_applied(), "the engine left out an update that was to be made"
    else:
        discard_gradients(engine)
    return total


def _one_by_one(engine: "DeepSpeedEngine", batches: Iterator[Batch], num_batches: int, groups: Groups) -> Tensor:
    total = torch.zeros((), device=groups.device)
    for tokens, start in batches:
        losses = engine(tokens[:, :-1], None, None, labels=tokens[:, 1:], first_sample=start)
        loss = losses.mean() / num_batches
        engine.backward(loss)
        total += loss.detach()
    return total


def _through_stages(engine: "DeepSpeedEngine", batches: Iterator[Batch], num_batches: int, groups: Groups) -> Tensor:
    first = next(batches)
    num_samples, length = first[0].shape
    pipeline = Pipeline(engine.module, groups)
    total = pipeline.train(engine, chain([first], batches), num_batches, (num_samples, length - 1))
    sum_over_stages(engine)
    return total
