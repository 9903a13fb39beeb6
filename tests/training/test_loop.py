"""What is done between steps, and what is told of them."""

import pytest

from megatron_mep.attention.work import Work
from megatron_mep.training.attention_metrics import attention_metrics
from tests.support.distributed import joined, run
from tests.training.loop_parts import STEP_S, STEPS, TOKENS_PER_STEP, trained


@pytest.mark.parametrize("done_steps", [0, 4])
def test_what_is_due_is_done_between_steps(done_steps: int):
    run(_due, 1, done_steps)


def _due(done_steps: int):
    _, watch, shown = trained(joined(), done_steps)
    after = {
        2: [("validate", 2), ("record", 2)],
        3: [("record", 3)],
        4: [("save", 4)],
        5: [("publish", 4)] if done_steps < 4 else [],
        6: [("validate", 6), ("record", 6)],
        7: [("record", 7), ("save", 7)],
    }
    expected = []
    for step in range(done_steps + 1, STEPS + 1):
        # each step runs at its own rate
        expected += [("step", step, step), *after.get(step, [])]
    assert watch.events == expected
    assert shown.advanced == STEPS - done_steps


def test_records_leave_out_the_time_of_anything_but_steps():
    run(_records, 2)


def _records():
    here = joined()
    loss, _, shown = trained(here, peak_tflops=64.0)
    # the mean over two ranks, whose losses differ by one
    assert loss == STEPS + 0.5
    assert {step: tokens for step, (tokens, _, _) in shown.records.items()} == {
        step: step * TOKENS_PER_STEP for step in (2, 3, 6, 7)
    }
    tokens_per_s = TOKENS_PER_STEP / STEP_S
    for step, (_, metrics, encoding) in shown.records.items():
        expected = {
            "loss": step + 0.5,
            "learning_rate": step,
            "grad_norm": 0.25,
            "tokens_per_s": tokens_per_s,
            "tflops_per_device_causal": tokens_per_s / 2,
            "mfu_causal": tokens_per_s / 2 / 64,
            "skipped_steps": 0,
            "loss_spikes": 0,
            "attention_kept": 0.25,
            "attention_dropped": 1e-7,
        }
        assert metrics == expected | ({"validation_loss": 9.0} if step in (2, 6) else {})
        assert encoding == {"layer_01/slope/min": 1.0}
    assert shown.left_s == {step: (STEPS - step) * STEP_S for step in shown.records}


def test_attention_that_drops_nothing_has_no_metrics():
    assert attention_metrics(Work()) == {}


def test_a_run_that_is_done_takes_no_step():
    run(_done, 1)


def _done():
    loss, watch, _ = trained(joined(), done_steps=STEPS)
    assert loss != loss
    assert watch.events == []
