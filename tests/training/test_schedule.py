import math
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_mep.training.schedule import build_scheduler
from tests.support.tiny import training_config

HIGHEST, LOWEST = 0.5, 0.1
WARMUP, STEPS = 4, 20


def rates(schedule: dict[str, Any], steps: int = STEPS, resumed: int = 0, **group: Any) -> list[float]:
    """The rates that steps 1, 2, ... run at, or those after `resumed`."""
    groups = [{"params": [], "lr": 0.0, "max_lr": HIGHEST, "wd_mult": 1.0, **group}]
    training = training_config(steps=steps, schedule=schedule, optimizer={"learning_rate": HIGHEST})
    scheduler = build_scheduler(SimpleNamespace(param_groups=groups), training)
    scheduler.step(resumed)
    found = []
    for _ in range(resumed, steps):
        scheduler.step(1)
        found.append(groups[0]["lr"])
    return found


def schedule(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "warmup_steps": WARMUP, "min_learning_rate": LOWEST, **options}


def line(start: float, stop: float, part: float) -> float:
    return start + (stop - start) * part


SHAPES = {
    "linear": lambda part: 1 - part,
    "cosine": lambda part: (1 + math.cos(math.pi * part)) / 2,
    "exponential": lambda part: 2 * 2**-part - 1,
    "minus_sqrt": lambda part: 1 - math.sqrt(part),
}
"""How much of the fall is left at a part of the decay."""


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_after_the_warm_up_the_rate_falls_to_the_last_step(name: str):
    expected = [line(0, HIGHEST, step / WARMUP) for step in range(1, WARMUP + 1)]
    parts = [(step - WARMUP) / (STEPS - WARMUP) for step in range(WARMUP + 1, STEPS + 1)]
    expected += [line(LOWEST, HIGHEST, SHAPES[name](part)) for part in parts]
    assert rates(schedule(name)) == pytest.approx(expected, rel=1e-12)
    assert rates(schedule(name))[-1] == LOWEST


@pytest.mark.parametrize("shape", list(SHAPES))
def test_wsd_stays_and_then_falls_over_the_last_steps(shape: str):
    found = rates(schedule("wsd", decay_steps=5, decay=shape))
    assert found[:WARMUP] == pytest.approx([line(0, HIGHEST, step / WARMUP) for step in range(1, WARMUP + 1)])
    assert found[WARMUP : STEPS - 5] == [HIGHEST] * (STEPS - 5 - WARMUP)
    falling = [line(LOWEST, HIGHEST, SHAPES[shape](step / 5)) for step in range(1, 6)]
    assert found[-5:] == pytest.approx(falling, rel=1e-12)


def test_a_constant_rate_stays():
    assert rates({"name": "constant", "warmup_steps": 2}) == [HIGHEST / 2] + [HIGHEST] * (STEPS - 1)
    assert rates({"name": "constant"}) == [HIGHEST] * STEPS


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_a_warm_up_may_take_all_steps(name: str):
    options = {"min_learning_rate": LOWEST} if name != "constant" else {}
    assert rates({"name": name, "warmup_steps": 4, **options}, steps=4) == [HIGHEST * step / 4 for step in range(1, 5)]


def test_a_group_has_its_own_highest_rate():
    assert rates(schedule("cosine"), max_lr=1.0)[WARMUP - 1] == 1.0


@pytest.mark.parametrize(
    "course", [schedule("cosine"), schedule("wsd", decay_steps=5), {"name": "constant", "warmup_steps": WARMUP}]
)
def test_a_resumed_run_takes_up_the_course(course: dict[str, Any]):
    for resumed in (2, 10, STEPS):
        assert rates(course, resumed=resumed) == rates(course)[resumed:]


def test_weight_decay_is_a_groups_own():
    groups = [{"params": [], "max_lr": 1.0, "wd_mult": multiple} for multiple in (1.0, 0.0)]
    training = training_config(optimizer={"weight_decay": 0.3})
    build_scheduler(SimpleNamespace(param_groups=groups), training).step(1)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]


def test_a_group_with_a_rate_of_its_own_falls_by_the_same_factor():
    own = rates(schedule("cosine"), max_lr=LOWEST / 2)
    assert own == pytest.approx([rate * LOWEST / 2 / HIGHEST for rate in rates(schedule("cosine"))], rel=1e-12)
