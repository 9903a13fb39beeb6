"""A checkpoint that is written behind the training that goes on is that of its step, or none."""

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from torch import distributed
from torch.multiprocessing.spawn import ProcessException

from megatron_mep.checkpoint.files import find, steps_in, take_over, verify
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.writer import Files
from megatron_mep.config.errors import CheckpointError
from tests.checkpoint.job import FRESH, RUNS, SAVED, STEPS, WORLDS, Job
from tests.support.distributed import TIMEOUT_S, run
from tests.support.tolerance import assert_exact_equal

RUN = "dropout, copied"
"""On two data ranks under ZeRO 1."""
LIMIT = 100_000
"""Bytes of a file, fewer than a rank writes."""


@contextmanager
def held(before: Callable[[], None] = lambda: None) -> Iterator[Event]:
    """Writers wait for the event, and do something else first."""
    released = Event()
    write = Files.write

    def waits(self: Files, is_unwanted: Callable[[], bool]) -> Any:
        assert released.wait(TIMEOUT_S)
        before()
        return write(self, is_unwanted)

    with patch.object(Files, "write", waits):
        try:
            yield released
        finally:
            released.set()


def trained(run_name: str, root: Path) -> Job:
    """A job after two steps, with a checkpoint of the first."""
    world = WORLDS[RUNS[run_name].world]
    job = Job(RUNS[run_name], world, world.joined(), SAVED)
    job.train(1, 1)
    job.saver(root).save(job.reached(1))
    job.train(2, STEPS)
    return job


@pytest.mark.parametrize("run_name", ["fp32, ZeRO 0", "fp32, ZeRO 2", RUN, "bf16, ZeRO 3"])
def test_it_holds_the_step_that_it_was_taken_after(run_name: str, tmp_path: Path):
    run(_later_steps, WORLDS[RUNS[run_name].world].size, run_name, tmp_path)


def _later_steps(run_name: str, root: Path) -> None:
    job = trained(run_name, root)
    expected = job.state()
    with job.saver(root, asynchronous=True) as saver:
        with held() as released:
            saver.save(job.reached())
            losses = job.train(STEPS + 1, STEPS + 2)
            saver.publish()
            assert steps_in(root) == [1]
        assert released.is_set()
    assert steps_in(root) == [1, STEPS]
    verify(find(root))
    later = job.state()
    assert any(bool((later[name] != value).any()) for name, value in expected.items())

    resumed = Job(RUNS[run_name], WORLDS[RUNS[run_name].world], job.here, FRESH)
    resumed.load(root)
    for name, value in resumed.state().items():
        assert_exact_equal(value, expected[name], name)
    # dropout draws what it drew
    assert resumed.train(STEPS + 1, STEPS + 2) == losses
    with resumed.saver(root, asynchronous=True) as saver:
        saver.save(resumed.reached(STEPS + 2))
    assert steps_in(root) == [1, STEPS, STEPS + 2]


def test_it_is_in_place_once_all_ranks_have_written(tmp_path: Path):
    run(_one_is_slow, 2, tmp_path)


def _one_is_slow(root: Path) -> None:
    job = trained(RUN, root)
    with job.saver(root, asynchronous=True) as saver, held() as released:
        saver.save(job.reached())
        if job.here.rank == 0:
            released.set()
        for _ in range(100):
            saver.publish()
        assert steps_in(root) == [1]
        released.set()
        while not steps_in(root)[1:]:
            saver.publish()
        assert find(root).name == f"step_{STEPS:08d}"


def test_the_next_one_waits_for_it(tmp_path: Path):
    run(_two_in_a_row, 2, tmp_path)


def _two_in_a_row(root: Path) -> None:
    job = trained(RUN, root)
    with job.saver(root, asynchronous=True, keep=1) as saver:
        for step in (STEPS, STEPS + 1):
            saver.save(job.reached(step))
        assert steps_in(root) == [STEPS]
    assert steps_in(root) == [STEPS + 1]
    assert not list(root.glob(".attempt_*/*.partial"))


def test_a_kill_while_it_is_written_keeps_the_one_before(tmp_path: Path):
    with pytest.raises(ProcessException):
        run(_killed, 2, tmp_path)
    assert [file.suffix for file in tmp_path.glob(".attempt_*/*")].count(".partial") == 1
    for _ in range(2):
        assert find(tmp_path) == tmp_path / "step_00000001"
        verify(find(tmp_path))
        take_over(tmp_path)


def _killed(root: Path) -> None:
    job = trained(RUN, root)

    def dies() -> None:
        if job.here.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with held(dies) as released, job.saver(root, asynchronous=True) as saver:
        saver.save(job.reached())
        released.set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_process_is_started(asynchronous: bool, tmp_path: Path):
    run(_alone, 2, asynchronous, tmp_path)


def _alone(asynchronous: bool, root: Path) -> None:
    refuse = AssertionError("it would outlive its rank")
    with patch.object(BaseProcess, "start", side_effect=refuse), patch.object(os, "fork", side_effect=refuse):
        job = trained(RUN, root)
        with job.saver(root, asynchronous=asynchronous) as saver:
            saver.save(job.reached())
    assert steps_in(root) == [1, STEPS]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_one_rank_cannot_write_is_told_by_all(asynchronous: bool, tmp_path: Path):
    run(_no_room, 2, asynchronous, tmp_path)


def _no_room(asynchronous: bool, root: Path) -> None:
    job = trained(RUN, root)
    if job.here.rank == 1:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    with (
        pytest.raises(CheckpointError, match=rf"takes no checkpoint: {os.strerror(errno.EFBIG)}; the last .* kept"),
        job.saver(root, asynchronous=asynchronous) as saver,
    ):
        saver.save(job.reached())
    assert find(root) == root / "step_00000001"
    verify(find(root))


@pytest.mark.parametrize("name", ["begin", "complete"])
def test_what_the_first_rank_cannot_write_for_all_is_told_by_all(name: str, tmp_path: Path):
    run(_no_room_on_the_first, 2, name, tmp_path)


def _no_room_on_the_first(name: str, root: Path) -> None:
    job = trained(RUN, root)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    at = {"begin": "megatron_mep.checkpoint.save.begin", "complete": "megatron_mep.checkpoint.writer.Files.complete"}
    with (
        patch(at[name], side_effect=full),
        pytest.raises(CheckpointError, match="No space left on device"),
        job.saver(root, asynchronous=True) as saver,
    ):
        saver.save(job.reached())
    assert steps_in(root) == [1]


def test_an_attempt_that_is_overtaken_while_it_writes_puts_nothing_in_place(tmp_path: Path):
    run(_overtaken, 2, tmp_path)


def _overtaken(root: Path) -> None:
    job = trained(RUN, root)
    with held() as released, job.saver(root, asynchronous=True) as saver:
        saver.save(job.reached())
        newer = told_by_rank_0(lambda: take_over(root))
        released.set()
        with pytest.raises(CheckpointError, match="belongs to a later attempt at this run"):
            saver.finish()
    assert newer.is_newest
    assert steps_in(root) == [1]


def test_an_error_gives_up_what_is_being_written(tmp_path: Path):
    run(_given_up, 2, tmp_path)


def _given_up(root: Path) -> None:
    job = trained(RUN, root)
    began = Event()
    write = Files.write

    def goes_on_until_unwanted(self: Files, is_unwanted: Callable[[], bool]) -> Any:
        began.set()
        while not is_unwanted():
            os.sched_yield()
        return write(self, is_unwanted)

    def fails_later() -> None:
        with job.saver(root, asynchronous=True) as saver:
            saver.save(job.reached())
            assert began.wait(TIMEOUT_S)
            raise ZeroDivisionError

    with patch.object(Files, "write", goes_on_until_unwanted), pytest.raises(ZeroDivisionError):
        fails_later()
    distributed.barrier()
    assert steps_in(root) == [1]
    assert all(file.stat().st_size == 0 for file in root.glob(".attempt_*/*.partial/__*"))
