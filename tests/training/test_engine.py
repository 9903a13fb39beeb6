import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, distributed, nn

from megatron_mep.checkpoint.zero_state import master_of
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups
from megatron_mep.parallel.tensor import is_encoding_weight
from megatron_mep.training.config import TrainingConfig
from megatron_mep.training.engine import build_engine
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.schedule import build_scheduler
from megatron_mep.training.step import micro_batch_starts, train_step
from tests.support.distributed import joined, run
from tests.support.tiny import (
    LAYOUT_RTOL,
    LEARNED,
    VOCABULARY,
    micro_batches_of,
    model_config,
    samples,
    training_config,
)
from tests.support.tolerance import assert_exact_equal

STEPS, BATCH = 5, 4
RATE, ENCODING_RATE, DECAY, CLIP = 1e-2, 5e-2, 0.3, 0.8
OPTIMIZER = {
    "learning_rate": RATE,
    "encoding_learning_rate": ENCODING_RATE,
    "weight_decay": DECAY,
    "clip_grad_norm": CLIP,
}


Course = list[tuple[float, float]]
"""Loss and norm of the gradient of each step."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Five updates by torch alone, on one process."""
    file = tmp_path_factory.mktemp("expected") / "course.json"
    run(_by_torch, 1, file)
    return json.loads(file.read_text())


def _by_torch(file: Path):
    joined()
    model = built()
    named = dict(model.named_parameters())
    encoding = [weight for name, weight in named.items() if "encoding_weights" in name]
    vectors = [weight for name, weight in named.items() if "norm" in name]
    matrices = [weight for name, weight in named.items() if "encoding_weights" not in name and "norm" not in name]
    assert len(encoding) + len(vectors) + len(matrices) == len(named)
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": DECAY},
            {"params": vectors, "weight_decay": 0},
            {"params": encoding, "weight_decay": 0},
        ],
        betas=(0.9, 0.95),
    )
    course = []
    for step in range(1, STEPS + 1):
        warm = min(1, step / 2)
        for group, rate in zip(optimizer.param_groups, (RATE, RATE, ENCODING_RATE), strict=True):
            group["lr"] = rate * warm
        tokens = samples((step - 1) * BATCH, BATCH)
        loss = model(tokens[:, :-1], None, None, labels=tokens[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        course.append((float(loss), float(nn.utils.clip_grad_norm_(named.values(), CLIP))))
        optimizer.step()
    assert max(norm for _, norm in course) > CLIP, "nothing is clipped"
    file.write_text(json.dumps(course))


def built(
    parallel: ParallelConfig | None = None, precision: Literal["fp32", "bf16"] = "fp32", **changes: Any
) -> nn.Module:
    config = model_config(**{"encoding": LEARNED, **changes})
    return build_model(config, parallel or ParallelConfig(), VOCABULARY, 1, dtype_of(precision))


def section(**changes: Any) -> TrainingConfig:
    schedule = {"name": "constant", "warmup_steps": 2}
    return training_config(
        steps=STEPS, global_batch_size=BATCH, **{"schedule": schedule, "optimizer": OPTIMIZER, **changes}
    )


def updated(model: nn.Module, training: TrainingConfig, here: Groups) -> Course:
    """The same updates under ZeRO; losses are the mean over data-parallel ranks."""
    engine = build_engine(model, training, here)
    scheduler = build_scheduler(engine.optimizer, training)
    course = []
    for step in range(1, training.steps + 1):
        scheduler.step(1)
        starts = micro_batch_starts(step, training, here)
        loss = train_step(engine, micro_batches_of(training.micro_batch_size), starts, here)
        distributed.all_reduce(loss, group=here.data_group)
        norm = engine.get_global_grad_norm()
        course.append((float(loss) / here.data_size, float("nan") if norm is None else float(norm)))
    return course


def assert_alike(found: Course, expected: Course, what: object) -> None:
    losses, norms = zip(*found, strict=True)
    expected_losses, expected_norms = zip(*expected, strict=True)
    assert losses == pytest.approx(expected_losses, rel=LAYOUT_RTOL), what
    # without ZeRO, DeepSpeed does not tell the norm
    if not any(map(math.isnan, norms)):
        assert norms == pytest.approx(expected_norms, rel=10 * LAYOUT_RTOL), what


@pytest.mark.parametrize("data_size", [1, 2])
def test_every_zero_stage_updates_as_torch_does(expected: Course, data_size: int):
    run(_stages, data_size, expected)


def _stages(expected: Course):
    here = joined()
    for stage, num_micro_batches in ((0, 2), (1, 1), (1, 2), (2, 2), (3, 2)):
        training = section(zero_stage=stage, micro_batch_size=BATCH // here.data_size // num_micro_batches)
        assert_alike(updated(built(), training, here), expected, (stage, num_micro_batches))


@pytest.mark.parametrize(
    ("data_size", "layouts"),
    [(1, [(False, 0), (False, 1), (True, 0), (True, 1), (True, 2), (True, 3)]), (2, [(True, 1), (True, 3)])],
    ids=["alone", "and two data ranks"],
)
def test_two_tensor_ranks_update_as_torch_does(expected: Course, data_size: int, layouts: list[tuple[bool, int]]):
    run(_tensor, 2 * data_size, expected, layouts)


def _tensor(expected: Course, layouts: list[tuple[bool, int]]):
    here = joined(tensor=2)
    for sequence, stage in layouts:
        model = built(ParallelConfig(tensor=2, sequence=sequence))
        training = section(zero_stage=stage, micro_batch_size=BATCH // here.data_size)
        assert_alike(updated(model, training, here), expected, (sequence, stage))


def test_bf16_follows_fp32(expected: Course):
    run(_bf16, 2, expected)


def _bf16(expected: Course):
    here = joined()
    for stage in (1, 2):
        model = built(precision="bf16")
        course = updated(model, section(zero_stage=stage, precision="bf16"), here)
        assert [loss for loss, _ in course] == pytest.approx([loss for loss, _ in expected], abs=0.02), stage
        for parameter in model.parameters():
            assert parameter.dtype == (torch.float32 if is_encoding_weight(parameter) else torch.bfloat16)
            master = master_of(parameter)
            assert master.dtype == torch.float32
            # what the next step computes with is the master, rounded once
            assert_exact_equal(parameter.detach(), master.to(parameter.dtype))
    fixed = {"encoding": {"name": "alibi"}}
    under_3 = updated(built(precision="bf16", **fixed), section(zero_stage=3, precision="bf16"), here)
    under_1 = updated(built(precision="bf16", **fixed), section(zero_stage=1, precision="bf16"), here)
    assert [loss for loss, _ in under_3] == pytest.approx([loss for loss, _ in under_1], abs=0.02)


class Products(nn.Module):
    """The sum of its weights times a number, which is the gradient of each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8))

    def forward(self, factor: float) -> Tensor:
        return (self.weight * factor).sum()


def test_bf16_gradients_are_added_in_fp32():
    run(_sums, 2)


def _sums():
    here = joined()
    for stage in (1, 2, 3):
        engine = build_engine(Products(), section(zero_stage=stage, precision="bf16"), here)
        engine.train()
        for _ in range(2):
            engine.backward(engine((256.0, 1.0)[here.data_rank]) / 2)
        engine.step()
        # 64 gradients of (256 + 1) / 2, where bf16 has 128
        assert float(engine.get_global_grad_norm()) == pytest.approx(8 * 128.5, rel=1e-6), stage
