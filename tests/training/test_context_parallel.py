"""Training with sequences shared by context ranks follows the course of one process."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups, seed_streams
from megatron_mep.training.engine import build_engine
from megatron_mep.training.schedule import build_scheduler
from megatron_mep.training.step import micro_batch_starts, train_step
from tests.support.distributed import joined, run
from tests.support.tiny import (
    LAYOUT_RTOL,
    LEARNED,
    VOCABULARY,
    micro_batches_of,
    model_config,
    training_config,
)

STEPS, BATCH, SEED = 20, 4, 1
ENCODINGS: dict[str, dict[str, Any]] = {
    "mep": {"name": "mep"},
    "learned mep": LEARNED,
    "rope": {"name": "rope"},
    "fire": {"name": "fire", "threshold": 8.5},
    "randomized": {"name": "randomized_rotation", "train_length": 16, "range": 64},
}
EXCHANGES = ("all_gather", "ulysses", "ring")
Course = dict[str, list[float]]
"""Losses of all steps, and norms of the gradients."""


def course_of(encoding: str, layout: dict[str, Any], here: Groups, zero_stage: int, num_micro_batches: int) -> Course:
    training = training_config(
        steps=STEPS,
        global_batch_size=BATCH,
        micro_batch_size=BATCH // here.data_size // num_micro_batches,
        zero_stage=zero_stage,
        schedule={"name": "constant", "warmup_steps": 2},
    )
    config = model_config(encoding=ENCODINGS[encoding], num_query_groups=2, qk_norm=encoding == "rope")
    model = build_model(config, ParallelConfig.model_validate(layout), VOCABULARY, SEED)
    # as in a run: what is drawn in training is drawn apart
    seed_streams(SEED + here.stream)
    engine = build_engine(model, training, here)
    scheduler = build_scheduler(engine.optimizer, training)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        scheduler.step(1)
        starts = micro_batch_starts(step, training, here)
        loss = train_step(engine, micro_batches_of(training.micro_batch_size), starts, here.device)
        distributed.all_reduce(loss, group=here.data_group)
        losses.append(float(loss) / here.data_size)
        norm = engine.get_global_grad_norm()
        norms += [] if norm is None else [float(norm)]
    return {"losses": losses, "norms": norms}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Course]:
    """The courses of one process."""
    file = tmp_path_factory.mktemp("expected") / "courses.json"
    run(_undivided, 1, file)
    return json.loads(file.read_text())


def _undivided(file: Path) -> None:
    here = joined()
    file.write_text(json.dumps({name: course_of(name, {}, here, 1, 1) for name in ENCODINGS}))


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({"context": 2}, id="2"),
        pytest.param({"context": 4}, id="4", marks=pytest.mark.slow),
        pytest.param(
            {"context": 2, "tensor": 2, "sequence": True}, id="2 and two tensor ranks", marks=pytest.mark.slow
        ),
    ],
)
def test_losses_are_those_of_one_process(expected: dict[str, Course], layout: dict[str, Any]) -> None:
    run(_exchanges, layout["context"] * layout.get("tensor", 1), expected, layout)


def _exchanges(expected: dict[str, Course], layout: dict[str, Any]) -> None:
    here = joined(**layout)
    for exchange in EXCHANGES:
        for name in ENCODINGS:
            # no ring serves FIRE; where tokens are placed has nothing to do with the exchange
            if (exchange, name) in {("ring", "fire"), ("ulysses", "randomized"), ("ring", "randomized")}:
                continue
            found = course_of(name, {**layout, "context_exchange": exchange}, here, 1, 1)
            _assert_alike(found, expected[name], (exchange, name))


@pytest.mark.slow
def test_every_zero_stage_takes_context_and_data_ranks_together(expected: dict[str, Course]) -> None:
    run(_stages, 4, expected)


def _stages(expected: dict[str, Course]) -> None:
    here = joined(context=2)
    for stage in (0, 1, 2, 3):
        found = course_of("learned mep", {"context": 2}, here, stage, 2)
        _assert_alike(found, expected["learned mep"], stage)


def _assert_alike(found: Course, expected: Course, what: object) -> None:
    assert found["losses"] == pytest.approx(expected["losses"], rel=LAYOUT_RTOL), what
    # without ZeRO, DeepSpeed does not tell the norm
    if found["norms"]:
        assert found["norms"] == pytest.approx(expected["norms"], rel=10 * LAYOUT_RTOL), what
