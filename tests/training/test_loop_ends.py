"""Runs that are asked to stop, and steps that are skipped."""

import math
from typing import Any

import pytest

from megatron_mep.config.errors import TrainingError
from tests.support.distributed import joined, run
from tests.training.loop_parts import STEPS, trained


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
