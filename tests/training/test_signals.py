import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException

from megatron_mep.training import signals
from megatron_mep.training.signals import Signals
from tests.support.distributed import run

DEADLINE_S = 10


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_what_would_end_a_process_is_heard_instead(number: signal.Signals):
    run(_heard, 1, number)


def _heard(number: signal.Signals):
    before = signal.getsignal(number)
    with Signals() as heard:
        assert heard.heard is None
        os.kill(os.getpid(), number)
        wait_until(lambda: heard.heard == number.name)
        # SLURM may send it twice
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_signals_are_left_alone():
    run(_others, 1)


def _others():
    with Signals() as heard:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(DEADLINE_S)
            raise AssertionError("not interrupted")
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: heard.heard == "SIGUSR1")


def test_a_second_term_ends_a_process_that_waits_in_a_collective():
    with pytest.raises(ProcessExitedException) as ended:
        run(_ended, 2)
    assert ended.value.exit_code == 128 + signal.SIGTERM


def _ended():
    if distributed.get_rank() == 1:
        time.sleep(DEADLINE_S)
        return
    with patch.object(signals, "ONE_TERM_S", 0.0), Signals() as heard:
        thread = threading.Thread(target=_send_twice, args=(heard,), daemon=True)
        thread.start()
        distributed.all_reduce(torch.zeros(1))


def _send_twice(heard: Signals) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    # the main thread waits for rank 1, which does not come
    wait_until(lambda: heard.heard == "SIGTERM")
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def test_what_is_sent_to_a_forked_child_is_not_heard_by_the_parent():
    run(_forked, 1)


def _forked():
    with Signals() as heard:
        ear, mouth = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(mouth, b"here")
            signal.pause()
        os.read(ear, 4)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: heard.heard is not None)
        assert heard.heard == "SIGUSR1"
