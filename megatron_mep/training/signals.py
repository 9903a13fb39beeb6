"""The signals that ask a run to stop. Nothing heavy is imported here: they are heard before torch is there."""

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

ASKING = (signal.SIGUSR1, signal.SIGTERM)
ONE_TERM_S = 5.0
"""SLURM may send TERM twice in a row: within this time both are one."""


class Signals:
    """Hears USR1 and TERM while it is entered, in the main thread; a second TERM ends the process at once.

    A handler in Python would have to wait while the main thread is in a collective. The byte that the interpreter
    itself writes for every signal is read by a thread of its own, which need not.
    """

    def __init__(self) -> None:
        self.heard: str | None = None
        """The last that was sent; `None` before any."""
        self._term_s: float | None = None

    def __enter__(self) -> Self:
        self._ear, self._mouth = os.pipe()
        os.set_blocking(self._mouth, False)
        self._mouth_before = signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _left_to_the_thread) for number in ASKING}
        self._is_entered = True
        # what is sent to a forked child is not for this process
        os.register_at_fork(after_in_child=self._deafen)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deafen()
        os.close(self._mouth)
        self._thread.join()
        os.close(self._ear)

    def _deafen(self) -> None:
        if self._is_entered:
            self._is_entered = False
            signal.set_wakeup_fd(self._mouth_before)
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _listen(self) -> None:
        # empty once the other end is closed
        while number := os.read(self._ear, 1):
            if number[0] in ASKING:
                self._hear(signal.Signals(number[0]))

    def _hear(self, number: signal.Signals) -> None:
        self.heard = number.name
        if number is signal.SIGTERM:
            now_s = time.monotonic()
            if self._term_s is not None and now_s - self._term_s > ONE_TERM_S:
                os._exit(128 + number)
            self._term_s = self._term_s or now_s


def _left_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Keeps the signal from ending the process."""
