"""A step that is not finite on one rank is left out on all of them, and leaves nothing behind."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from megatron_mep.checkpoint.zero_state import MOMENTS, master_of, moment_of
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups
from megatron_mep.training.engine import build_engine
from megatron_mep.training.gradients import measured
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.schedule import build_scheduler
from megatron_mep.training.step import micro_batch_starts, train_step
from megatron_mep.training.watch import Seen, Verdict, Watch
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, VOCABULARY, micro_batches_of, model_config, training_config
from tests.support.tolerance import assert_exact_equal

STEPS, BATCH, FAULTY = 5, 4, 3
Fault = Callable[[nn.Module, Groups], "Counter"]
State = dict[str, Tensor]


class Counter:
    """Spoils a tensor in one of the calls, on one rank."""

    def __init__(self, here: bool, factor: float) -> None:
        self._here, self._factor = here, factor
        self.due = False

    def __call__(self, tensor: Tensor) -> Tensor:
        if not (self._here and self.due):
            return tensor
        self.due = False
        return tensor * self._factor


def in_the_loss(factor: float) -> Fault:
    """Of the last data rank."""

    def install(model: nn.Module, here: Groups) -> Counter:
        spoil = Counter(here.data_rank == here.data_size - 1, factor)
        model.register_forward_hook(lambda _model, _inputs, losses: spoil(losses))
        return spoil

    return install


def in_a_gradient(factor: float) -> Fault:
    """Of a weight that the last rank has a part of, after the backward pass has left it."""

    def install(model: nn.Module, here: Groups) -> Counter:
        spoil = Counter(here.rank == here.world_size - 1, factor)
        *_, weight = (weight for name, weight in model.named_parameters() if "qkv" in name)
        weight.register_hook(spoil)
        return spoil

    return install


LOSS, GRADIENT = in_the_loss(float("nan")), in_a_gradient(float("nan"))
INFINITE, TOO_LARGE = in_a_gradient(float("inf")), in_a_gradient(1e30)


def trained(
    here: Groups, parallel: ParallelConfig, stage: int, precision: Literal["fp32", "bf16"], fault: Fault | None
) -> tuple[list[float], State, Seen]:
    """Losses of the steps but the faulty one, all that the optimizer holds, and what was seen; no fault: left out."""
    learns = precision == "fp32" or stage < 3
    config = model_config(encoding=LEARNED if learns else {"name": "alibi"})
    model = build_model(config, parallel, VOCABULARY, 1, dtype_of(precision))
    training = training_config(
        steps=STEPS,
        global_batch_size=BATCH,
        zero_stage=stage,
        precision=precision,
        micro_batch_size=1,
        schedule={"name": "linear"},
    )
    spoil = fault(model, here) if fault else None
    engine = build_engine(model, training, here)
    scheduler = build_scheduler(engine.optimizer, training)
    watch = Watch(training, Seen())
    losses = []
    for step in range(1, STEPS + 1):
        scheduler.step(1)
        if step == FAULTY and spoil is None:
            continue
        starts = micro_batch_starts(step, training, here)

        def micro_batch(first: int, step: int = step, starts: range = starts) -> Tensor:
            if spoil is not None:
                # neither the first nor the last: gradients are accumulated before and after
                spoil.due = step == FAULTY and first == starts[1]
            return micro_batches_of(1)(first)

        train_step(engine, micro_batch, starts, here, lambda loss: watch.judge(*measured(engine, loss)).is_taken)
        assert (watch.verdict is Verdict.NOT_FINITE) == (step == FAULTY), (step, watch.told)
        if step != FAULTY:
            losses.append(watch.loss)
    return losses, state_of(engine), watch.seen


def state_of(engine: Any) -> State:
    state = {}
    for name, parameter in engine.module.named_parameters():
        state[name] = master_of(parameter).clone()
        state |= {f"{kind} of {name}": moment_of(parameter, kind, engine).clone() for kind in MOMENTS}
    basic = engine.optimizer.optimizer if engine.zero_optimization() else engine.optimizer
    state |= {f"updates of {number}": each["step"] for number, each in enumerate(basic.state.values())}
    return state


Case = tuple[int, Literal["fp32", "bf16"], Fault]
CASES: dict[str, tuple[int, dict[str, Any], list[Case]]] = {
    "two data ranks": (2, {}, [(0, "fp32", LOSS), (0, "fp32", GRADIENT), (1, "fp32", LOSS), (2, "fp32", GRADIENT)]),
    "two data ranks, ZeRO 3": (2, {}, [(3, "fp32", GRADIENT), (3, "fp32", TOO_LARGE), (0, "fp32", TOO_LARGE)]),
    "two data ranks, bf16": (2, {}, [(1, "bf16", LOSS), (2, "bf16", GRADIENT), (3, "bf16", INFINITE)]),
    "two data ranks, bf16, too large": (2, {}, [(1, "bf16", TOO_LARGE), (2, "bf16", TOO_LARGE)]),
    "two tensor ranks": (2, {"tensor": 2}, [(0, "fp32", INFINITE), (1, "fp32", GRADIENT), (1, "bf16", GRADIENT)]),
    "two stages": (2, {"pipeline": 2}, [(1, "fp32", LOSS), (1, "fp32", TOO_LARGE), (1, "bf16", GRADIENT)]),
    "both, sequence parallel": (
        4,
        {"tensor": 2, "sequence": True},
        [(1, "fp32", LOSS), (2, "fp32", INFINITE), (3, "fp32", GRADIENT)],
    ),
}


@pytest.mark.parametrize("layout", CASES)
def test_a_run_goes_on_as_one_in_which_the_step_was_left_out_by_hand(layout: str):
    world_size, parallel, cases = CASES[layout]
    run(_left_out, world_size, parallel, cases)


def _left_out(parallel: dict[str, Any], cases: list[Case]):
    here = joined(**parallel)
    config = ParallelConfig.model_validate(parallel)
    for stage, precision, fault in cases:
        losses, state, seen = trained(here, config, stage, precision, fault)
        expected_losses, expected, _ = trained(here, config, stage, precision, None)
        what = f"ZeRO {stage}, {precision}"
        assert seen.skipped_steps == 1, what
        assert losses == expected_losses, what
        assert state.keys() == expected.keys()
        for name, tensor in state.items():
            assert_exact_equal(tensor, expected[name], f"{what}: {name}")
            assert not name.startswith("updates") or int(tensor) == STEPS - 1


def test_an_infinite_loss_with_a_finite_gradient_is_seen():
    run(_loss_alone, 2)


def _loss_alone():
    here = joined()
    model = build_model(model_config(), ParallelConfig(), VOCABULARY, 1, torch.float32)
    engine = build_engine(model, training_config(), here)
    loss, gradient_norm = measured(engine, torch.tensor(float("inf") if here.data_rank else 2.0))
    assert loss == float("inf")
    assert gradient_norm == 0.0


def test_the_measured_loss_is_the_mean_and_the_norm_a_bound():
    run(_measured, 2)


def _measured():
    here = joined()
    for stage in (0, 1, 2, 3):
        model = build_model(model_config(), ParallelConfig(), VOCABULARY, 1, torch.float32)
        training = training_config(zero_stage=stage, global_batch_size=2)
        engine = build_engine(model, training, here)
        found: list[tuple[float, float]] = []

        def is_taken(loss: Tensor, engine: Any = engine, found: list[tuple[float, float]] = found) -> bool:
            found.append(measured(engine, loss + here.data_rank))
            return True

        own = train_step(engine, micro_batches_of(1), micro_batch_starts(1, training, here), here, is_taken)
        ((loss, bound),) = found
        torch.distributed.all_reduce(own)
        assert loss == pytest.approx(float(own) / 2 + 0.5, rel=1e-6)
        norm = engine.get_global_grad_norm()
        if norm is not None:
            assert float(norm) <= bound < 4 * float(norm), stage
