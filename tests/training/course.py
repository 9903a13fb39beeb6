"""The course of a short training at any layout, to be compared with that of one process."""

from collections.abc import Sequence
from typing import Any

import pytest
from torch import distributed

from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups, seed_streams
from megatron_mep.training.engine import build_engine
from megatron_mep.training.schedule import build_scheduler
from megatron_mep.training.step import micro_batch_starts, train_step
from tests.support.tiny import LAYOUT_RTOL, LEARNED, VOCABULARY, micro_batches_of, model_config, training_config

STEPS, BATCH, SEED = 20, 4, 1
# at ten times this rate, one process that divides a batch otherwise comes to other losses too
RATE = 1e-3
MODELS: dict[str, dict[str, Any]] = {
    "mep": {"encoding": {"name": "mep"}},
    "learned mep": {"encoding": LEARNED},
    "rope": {"encoding": {"name": "rope"}, "qk_norm": True},
    "fire": {"encoding": {"name": "fire", "threshold": 8.5}},
    "randomized": {"encoding": {"name": "randomized_rotation", "train_length": 16, "range": 64}},
    # those that pipeline stages have to share something for
    "tied": {"encoding": {"name": "sinusoidal"}, "tied_embeddings": True},
    "shared": {"encoding": {"name": "kerple_power", "shared_by_layers": True}, "nope_layers": [1]},
    "carried": {"encoding": {"name": "tape"}},
    # the first of two stages has no weight of the encoding
    "bare stage": {"encoding": LEARNED, "nope_layers": [1, 2]},
    # more layers than four stages have
    "deep": {"encoding": LEARNED, "num_layers": 8},
    "deep and shared": {
        "encoding": {"name": "kerple_power", "shared_by_layers": True},
        "num_layers": 8,
        "nope_layers": [1],
        "tied_embeddings": True,
    },
}
Course = dict[str, list[float]]
"""Losses of all steps, and norms of the gradients where the engine tells them."""


def course_of(
    name: str,
    layout: dict[str, Any],
    here: Groups,
    zero_stage: int = 1,
    num_micro_batches: int = 2,
    recompute: str = "none",
) -> Course:
    """The first steps of a model of `MODELS`, of four layers or more; losses are the mean over data-parallel ranks."""
    training = training_config(
        steps=STEPS,
        global_batch_size=BATCH,
        micro_batch_size=BATCH // here.data_size // num_micro_batches,
        zero_stage=zero_stage,
        recompute=recompute,
        optimizer={"learning_rate": RATE},
        schedule={"name": "constant", "warmup_steps": 2},
    )
    config = model_config(**{"num_layers": 4, "num_query_groups": 2, **MODELS[name]})
    parallel = ParallelConfig.model_validate(layout)
    model = build_model(config, parallel, VOCABULARY, SEED, recompute=training.recompute)
    # as in a run: what is drawn in training is drawn apart
    seed_streams(SEED + here.stream)
    engine = build_engine(model, training, here)
    scheduler = build_scheduler(engine.optimizer, training)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        scheduler.step(1)
        starts = micro_batch_starts(step, training, here)
        loss = train_step(engine, micro_batches_of(training.micro_batch_size), starts, here)
        distributed.all_reduce(loss, group=here.data_group)
        losses.append(float(loss) / here.data_size)
        norm = engine.get_global_grad_norm()
        norms += [] if norm is None else [float(norm)]
    return {"losses": losses, "norms": norms}


def assert_alike(found: Course, expected: Course, what: Sequence[object]) -> None:
    """The same losses and norms, as the project promises."""
    assert found["losses"] == pytest.approx(expected["losses"], rel=LAYOUT_RTOL), what
    # without ZeRO, DeepSpeed does not tell the norm
    if found["norms"]:
        assert found["norms"] == pytest.approx(expected["norms"], rel=LAYOUT_RTOL), what
