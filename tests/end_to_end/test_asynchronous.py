"""A run whose checkpoints are written behind its steps ends where one ends that waits for them."""

from pathlib import Path

import pytest
from torch.multiprocessing.spawn import ProcessException

from megatron_mep.checkpoint.files import find, steps_in, verify
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import job, train_on
from tests.end_to_end.test_resume import records

WORLD_SIZE = 2
TENSOR = "megatron_mep.checkpoint.writer._write_item"
IN_THE_SECOND = 40
"""A tensor of the second checkpoint, of the some thirty that a rank writes of each."""


def behind(folder: Path, name: str) -> RunConfig:
    return job(folder, **{"name": name, "checkpoint.asynchronous": "true"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("asynchronous")
    corpus(place)
    return place


@pytest.fixture(scope="module")
def waiting(folder: Path) -> RunConfig:
    run = job(folder, name="waiting")
    train_on(WORLD_SIZE, run)
    return run


def test_every_checkpoint_is_in_place_at_the_end(folder: Path, waiting: RunConfig):
    run = behind(folder, "whole")
    train_on(WORLD_SIZE, run)
    assert records(run) == records(waiting)
    root = run.folder / "checkpoints"
    assert steps_in(root) == steps_in(waiting.folder / "checkpoints") == [3, 6, 8]
    for step in root.glob("step_*"):
        verify(step)
    assert not list(root.glob(".attempt_*"))


def test_a_run_killed_while_one_is_written_goes_on_from_the_one_before(folder: Path, waiting: RunConfig):
    run = behind(folder, "killed")
    root = run.folder / "checkpoints"
    with pytest.raises(ProcessException):
        train_on(WORLD_SIZE, run, killed_at=(TENSOR, IN_THE_SECOND))
    assert steps_in(root) == [3]
    verify(find(root))
    train_on(WORLD_SIZE, run)
    assert records(run) == records(waiting)
    assert not list(root.glob(".attempt_*"))
