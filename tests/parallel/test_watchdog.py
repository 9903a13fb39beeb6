import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from megatron_mep.parallel import watchdog
from megatron_mep.parallel.job_config import JobConfig
from megatron_mep.parallel.watchdog import Watchdog
from tests.support.distributed import run

LIMIT_S = 2.0
LONG_S = 25.0


class Counted(Watchdog):
    """Counts how often its thread has looked."""

    looks = 0

    def _hang(self) -> str | None:
        self.looks += 1
        return super()._hang()

    def wait_for_a_look(self) -> None:
        """Until one has begun and ended from here on."""
        wanted, until_s = self.looks + 2, time.monotonic() + LONG_S
        while self.looks < wanted:
            assert time.monotonic() < until_s, "its thread does not look"
            time.sleep(0.005)


def watched(folder: Path, limit_s: float = LIMIT_S) -> Counted:
    rank = distributed.get_rank()
    job = JobConfig(hang_minutes=limit_s / 60)
    return Counted.of_job(rank, distributed.get_world_size(), job, folder, (folder / f"told_{rank}").write_text)


def sleep_at_home() -> None:
    threading.Event().wait(LONG_S)


def test_a_collective_that_one_rank_never_joins_ends_all_with_their_stacks(tmp_path: Path):
    began_s = time.monotonic()
    with pytest.raises(ProcessExitedException) as ended:
        run(_hang, 2, tmp_path)
    assert ended.value.exit_code == 70
    assert time.monotonic() - began_s < LONG_S / 2
    stacks = [(tmp_path / "stacks" / f"rank_{rank}.txt").read_text() for rank in range(2)]
    assert all("has not come on for" in text for text in stacks)
    assert "all_reduce" in stacks[0]
    assert "sleep_at_home" in stacks[1]
    assert (tmp_path / "told_0").read_text() == (tmp_path / "told_1").read_text()


def _hang(folder: Path):
    with watched(folder):
        if distributed.get_rank():
            sleep_at_home()
        distributed.all_reduce(torch.zeros(1))


def test_a_process_in_which_no_other_thread_can_run_is_ended_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(ProcessExitedException):
        run(_holds, 1, tmp_path)
    assert "in _holds" in capfd.readouterr().err


def _holds(folder: Path):
    with patch.object(watchdog, "SILENT_S", 0.5), watched(folder, limit_s=0.5) as dog:
        dog.wait_for_a_look()
        # calls by way of this class keep the interpreter's lock
        ctypes.PyDLL(None).usleep(int(LONG_S * 1e6))


def test_ranks_that_come_on_are_left_alone(tmp_path: Path):
    run(_comes_on, 2, tmp_path)
    assert list(tmp_path.iterdir()) == []


def _comes_on(folder: Path):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=time.sleep)
    with patch.object(watchdog, "time", clock), patch.object(watchdog, "POLL_S", 0.01):
        for _ in range(2):
            with watched(folder) as dog:
                for _ in range(4):
                    clock.now += 0.9 * LIMIT_S
                    dog.wait_for_a_look()
                    dog.tick()


def test_the_others_tell_which_rank_was_killed(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(ProcessException):
        run(_killed, 2, tmp_path)
    assert "mep: rank 0 (" in (told := capfd.readouterr().err)
    assert "ends because rank 1 (" in told
    assert "has died" in told


def _killed(folder: Path):
    with patch.object(watchdog, "LINGER_S", 0.5), watched(folder, limit_s=LONG_S):
        distributed.barrier()
        if distributed.get_rank():
            os.kill(os.getpid(), signal.SIGKILL)
        # the test's launcher ends this rank, too, once it sees the first one's end
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        distributed.all_reduce(torch.zeros(1))


@pytest.mark.parametrize("waits_in_collective", [True, False])
def test_the_others_tell_by_what_error_a_rank_has_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], waits_in_collective: bool
):
    with pytest.raises(ProcessException):
        run(_leaves, 2, tmp_path, waits_in_collective)
    assert "ends because rank 1 (" in (told := capfd.readouterr().err)
    assert "ended by KeyError: 'a batch'" in told


def _leaves(folder: Path, waits_in_collective: bool):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with patch.object(watchdog, "LINGER_S", 0.5), watched(folder):
        distributed.barrier()
        if distributed.get_rank():
            raise KeyError("a batch")
        if waits_in_collective:
            distributed.all_reduce(torch.zeros(1))
        # as a rank that waits for a GPU would
        sleep_at_home()
