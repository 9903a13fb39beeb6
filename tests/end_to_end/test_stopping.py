"""A run that is asked to stop saves, ends with exit code 75, and once started again ends as an undisturbed one."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from torch import Tensor, distributed
from torch.multiprocessing.spawn import ProcessExitedException

from megatron_mep.checkpoint.files import steps_in
from megatron_mep.pretrain import pretrain
from megatron_mep.run import RunConfig
from megatron_mep.training import loop
from megatron_mep.training.attempts import Finished
from megatron_mep.training.step import train_step
from tests.data.toy import corpus
from tests.end_to_end.job import describe_rank, job, train_on
from tests.end_to_end.test_resume import records
from tests.support.distributed import run as run_ranks

STOPPED_IN = 5
BATCH = 4
"""Sequences of a step."""


def usr1(_run: RunConfig) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def term(_run: RunConfig) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stop_file(run: RunConfig) -> None:
    (run.folder / "STOP").touch()


def train_and_ask(run: RunConfig, ask: Callable[[RunConfig], None] | None, step: int = STOPPED_IN) -> None:
    """Trains on two ranks, of which the last one asks in the midst of a step; it must end by being stopped."""
    with pytest.raises(ProcessExitedException) as ended:
        run_ranks(_train, 2, run, ask, step)
    assert ended.value.exit_code == 75


def _train(run: RunConfig, ask: Callable[[RunConfig], None] | None, asked_in: int) -> None:
    describe_rank()

    def asking(engine: Any, micro_batch: Any, starts: range, *others: Any) -> Tensor:
        if ask and distributed.get_rank() == 1 and starts[0] // BATCH + 1 == asked_in:
            ask(run)
        return train_step(engine, micro_batch, starts, *others)

    with patch.object(loop, "train_step", asking):
        pretrain(run)


def attempts(run: RunConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "attempts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stopping")
    corpus(place)
    return place


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> RunConfig:
    run = job(folder, name="whole")
    train_on(2, run)
    return run


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        pytest.param(usr1, "SIGUSR1"),
        pytest.param(term, "SIGTERM", marks=pytest.mark.slow),
        pytest.param(stop_file, "STOP"),
    ],
)
def test_a_run_that_was_stopped_ends_as_the_undisturbed_one(
    folder: Path,
    undisturbed: RunConfig,
    ask: Callable[[RunConfig], None],
    reason: str,
    capfd: pytest.CaptureFixture[str],
):
    run = job(folder, name=f"stopped-{reason}")
    train_and_ask(run, ask)
    # what comes in the midst of a step is agreed on at its end, or at the next one's
    stopped = max(steps_in(run.folder / "checkpoints"))
    assert stopped in (STOPPED_IN, STOPPED_IN + 1)
    assert f"stopped by {reason} after step {stopped} of 8 ({run.folder}" in capfd.readouterr().out
    assert Finished.read(run.folder) is None
    (run.folder / "STOP").unlink(missing_ok=True)
    train_on(2, run)
    assert records(run) == records(undisturbed)
    told = [(line["event"], line["step"], line.get("reason")) for line in attempts(run)]
    assert told == [("start", 0, None), ("end", stopped, reason), ("start", stopped, None), ("end", 8, "finished")]


def test_a_run_whose_clock_has_run_out_takes_no_step(folder: Path):
    run = job(folder, name="never", **{"job.stop_after_minutes": 1e-6})
    train_and_ask(run, None)
    assert steps_in(run.folder / "checkpoints") == []
    assert [line.get("reason") for line in attempts(run)] == [None, "the clock"]


def test_a_finished_run_is_not_trained_again_until_more_steps_are_asked_of_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
):
    run = job(folder, name="finished", **{"training.steps": 2})
    train_on(1, run)
    finished = Finished.read(run.folder)
    assert finished is not None
    assert finished.step == 2
    assert finished.loss == records(run)[-1]["loss"]
    before = (run.folder / "metrics.jsonl").read_text()
    (run.folder / "finished.json").unlink()
    capfd.readouterr()
    train_on(1, run)
    assert "finished: finished, 2 steps are done" in capfd.readouterr().out
    again = Finished.read(run.folder)
    assert again is not None
    assert again.loss == pytest.approx(finished.loss)
    assert (run.folder / "metrics.jsonl").read_text() == before
    longer = job(folder, name="finished", **{"training.steps": 3})
    train_on(1, longer)
    longest = Finished.read(run.folder)
    assert longest is not None
    assert longest.step == 3
