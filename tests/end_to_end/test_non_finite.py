"""A run with steps that are not finite: it goes on where it can, and ends with what its user needs to know."""

import contextlib
import io
import json
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import ProcessException

from megatron_mep import cli
from megatron_mep.checkpoint.files import find, steps_in
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.run import RunConfig
from megatron_mep.training import loop
from megatron_mep.training.step import train_step
from tests.data.toy import corpus
from tests.end_to_end.job import describe_rank, job, train_on
from tests.end_to_end.test_resume import records
from tests.support.distributed import run as run_ranks

BATCH = 4
"""Sequences of a step."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("non_finite")
    corpus(place)
    return place


def train_with_faults(run: RunConfig, steps: tuple[int, ...], code: int = 0, killed_at: int = 0) -> str:
    """Trains on two ranks by the command line, the last one's loss NaN in some steps; what the first told as wrong."""
    file = run.folder.parent / f"{run.name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(run.yaml())
    told = file.with_suffix(".txt")
    run_ranks(_train, 2, file, steps, code, killed_at, told)
    return told.read_text()


def _train(file: Path, steps: tuple[int, ...], code: int, killed_at: int, told: Path) -> None:
    describe_rank()
    rank = distributed.get_rank()

    def faulty(engine: Any, micro_batch: Any, starts: range, *others: Any) -> Tensor:
        step = starts[0] // BATCH + 1
        if rank and step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        factor = torch.nan if rank and step in steps else 1.0
        spoil = engine.module.register_forward_hook(lambda _model, _inputs, losses: losses * factor)
        try:
            return train_step(engine, micro_batch, starts, *others)
        finally:
            spoil.remove()

    with contextlib.redirect_stderr(io.StringIO()) as stream, patch.object(loop, "train_step", faulty):
        assert cli.main(["train", str(file)]) == code
    if rank == 0:
        told.write_text(stream.getvalue())


def losses(run: RunConfig) -> dict[int, float | None]:
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def test_a_run_with_skipped_steps_resumes_as_if_it_had_not_stopped(folder: Path):
    whole, killed = job(folder, name="whole"), job(folder, name="killed")
    train_with_faults(whole, (2, 3))
    # that of step 3 waits for a step that is taken
    assert steps_in(whole.folder / "checkpoints") == [4, 6, 8]
    assert [step for step, loss in losses(whole).items() if loss is None] == [2, 3]
    assert [record["skipped_steps"] for record in records(whole)] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert read_progress(find(whole.folder)).updates == 6
    with pytest.raises(ProcessException):
        train_with_faults(killed, (2, 3), killed_at=6)
    assert steps_in(killed.folder / "checkpoints") == [4]
    train_on(2, killed)
    assert records(killed) == records(whole)


def test_the_end_is_told_with_an_exit_code_of_its_own(folder: Path):
    run = job(folder, name="ends", **{"training.non_finite.max_consecutive": 2})
    told = train_with_faults(run, (2, 5, 6), code=3)
    assert "Traceback" not in told
    (line,) = told.splitlines()
    assert line.startswith(
        "mep: training.non_finite.max_consecutive = 2: steps in a row were skipped, the last of them "
    )
    for said in ("step 6", str(run.folder / "checkpoints" / "step_00000003"), "training.optimizer.learning_rate"):
        assert said in line
    assert steps_in(run.folder / "checkpoints") == [3]
    assert list(losses(run)) == [1, 2, 3, 4, 5, 6]
    assert [step for step, loss in losses(run).items() if loss is None] == [2, 5, 6]
