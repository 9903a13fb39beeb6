"""Ends a job that does not go on: every rank writes where it stands, says why, and leaves.

A thread looks every few seconds; what one rank finds, the others read in the store of the job. It also works while the
main thread waits in a collective, which lets other threads run. Where something keeps even them from running, the
interpreter's own timer writes the stacks to standard error and ends the process.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from torch.distributed import DistError, PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store

from megatron_mep.config.errors import UserError
from megatron_mep.parallel.job_config import JobConfig
from megatron_mep.parallel.place import Place

EXIT_CODE = os.EX_SOFTWARE
STACKS = "stacks"
POLL_S = 5.0
LINGER_S = 10.0
"""How long ranks wait for what others have to say or to read before they leave."""
SILENT_S = 300.0
"""After which a rank whose thread says nothing is taken for lost, with its node."""
HANG, LEFT, DUMPED, ENDED = "hang", "left", "dumped", "ended"
"""Keys of the store: why the job hangs, who left it by an error, and how many have written stacks, or have left."""


class Watchdog:
    """Watches over one rank while it is entered.

    Args:
        store: The job's; rank 0 is the last to leave it.
        rank: This process's.
        world_size: Ranks of the job.
        limit_s: Longest time between two calls of `tick`.
        stacks: Folder of the stacks, made when it is needed.
        on_end: Told why, just before the process ends.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        limit_s: float,
        stacks: Path,
        on_end: Callable[[str], None],
    ) -> None:
        self._rank, self._world_size, self._limit_s = rank, world_size, limit_s
        self._stacks, self._on_end = stacks, on_end
        self._poll_s = min(POLL_S, limit_s / 4)
        self._place = Place.here(rank, world_size)
        # ranks use the store equally often, so that they meet under the same prefix
        use = store.add(f"watchdogs of rank {rank}", 1)
        self._store = PrefixStore(f"watchdog {use}", store.clone())  # type: ignore[attr-defined]
        self._over = threading.Event()
        self._ticked_s = time.monotonic()
        self._others: list[Place] = []
        self._beats: dict[int, tuple[bytes, float]] = {}

    @classmethod
    def of_job(
        cls, rank: int, world_size: int, job: JobConfig, run: Path, on_end: Callable[[str], None] | None = None
    ) -> Self:
        """That of the processes of the default group, for the run whose folder is `run`."""
        return cls(_get_default_store(), rank, world_size, job.hang_s, run / STACKS, on_end or _ignore)

    def __enter__(self) -> Self:
        self._store.set(_place_of(self._rank), self._place.text)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        with suppress(DistError):
            if isinstance(error, Exception):
                self._tell_cause(error)
            self._store.set(_end_of(self._rank), "")
            self._store.add(ENDED, 1)
            # what the others read goes with rank 0
            if self._rank == 0:
                self._wait_for_all(ENDED, LINGER_S)

    def tick(self) -> None:
        """The main thread has come on."""
        self._ticked_s = time.monotonic()

    def _watch(self) -> None:
        beat = 0
        while not self._over.wait(self._poll_s):
            faulthandler.dump_traceback_later(self._limit_s + SILENT_S, file=2, exit=True)
            beat += 1
            try:
                self._store.set(_beat_of(self._rank), str(beat))
                reason = self._hang() or self._loss()
            except DistError:
                reason = None if self._over.wait(LINGER_S) else "rank 0, which keeps the job's store, is gone"
            if reason:
                self._end(reason)

    def _hang(self) -> str | None:
        still_s = time.monotonic() - self._ticked_s
        if still_s > self._limit_s:
            self._announce(HANG, f"{self._place} has not come on for {still_s:.0f} s (job.hang_minutes)")
        return self._told(HANG)

    def _loss(self) -> str | None:
        """Who is gone, once this rank had time to find out by itself and leave."""
        self._look_for_the_lost()
        if self._told(LEFT) is None or self._over.wait(LINGER_S):
            return None
        return self._told(LEFT)

    def _look_for_the_lost(self) -> None:
        for other in self._neighbours():
            if other.is_dead and not self._store.check([_end_of(other.rank)]):
                self._announce(LEFT, f"{other}, process {other.process}, has died")
        if self._rank == 0:
            now_s = time.monotonic()
            for other in self._others:
                key = _beat_of(other.rank)
                beat = self._store.get(key) if self._store.check([key]) else b""
                last, since_s = self._beats.get(other.rank, (None, 0.0))
                if beat != last:
                    self._beats[other.rank] = beat, now_s
                elif now_s - since_s > SILENT_S and not self._store.check([_end_of(other.rank)]):
                    self._announce(LEFT, f"{other} has not been heard of for {now_s - since_s:.0f} s")

    def _neighbours(self) -> list[Place]:
        """The other ranks of this host, once all of the job are there."""
        if not self._others:
            ranks = [rank for rank in range(self._world_size) if rank != self._rank]
            keys = [_place_of(rank) for rank in ranks]
            if keys and self._store.check(keys):
                self._others = [Place.of(text) for text in self._store.multi_get(keys)]
        return [other for other in self._others if other.host == self._place.host]

    def _tell_cause(self, error: Exception) -> None:
        """Says who left first, where that was not this rank; mistakes of the user's are found by all at once."""
        until_s = time.monotonic() + (0 if isinstance(error, UserError) else 1)
        while time.monotonic() < until_s and self._told(LEFT) is None:
            # a connection breaks a little before its process is dead
            self._look_for_the_lost()
            time.sleep(0.05)
        own = f"{self._place} ended by {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._announce(LEFT, own)
        cause = self._told(LEFT)
        if cause != own and not isinstance(error, UserError):
            _say(f"{self._place} ends because {cause}")

    def _end(self, reason: str) -> None:
        try:
            file = self._write_stacks(reason)
            self._on_end(reason)
            _say(f"{self._place} ends because {reason}; where it stood is in {file}")
            with suppress(DistError):
                self._store.add(DUMPED, 1)
                self._wait_for_all(DUMPED, LINGER_S + 2 * self._poll_s)
        finally:
            os._exit(EXIT_CODE)

    def _write_stacks(self, reason: str) -> Path:
        self._stacks.mkdir(parents=True, exist_ok=True)
        file = self._stacks / f"rank_{self._rank}.txt"
        with file.open("w", encoding="utf-8") as stream:
            stream.write(f"{self._place}, process {self._place.process}: {reason}\n\n")
            stream.flush()
            faulthandler.dump_traceback(stream, all_threads=True)
        return file

    def _announce(self, key: str, reason: str) -> None:
        """The first rank to say something has said it for all."""
        self._store.compare_set(key, "", reason)

    def _told(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _wait_for_all(self, key: str, at_most_s: float) -> None:
        until_s = time.monotonic() + at_most_s
        while self._store.add(key, 0) < self._world_size and time.monotonic() < until_s:
            time.sleep(0.05)


def _place_of(rank: int) -> str:
    return f"place {rank}"


def _beat_of(rank: int) -> str:
    return f"beat {rank}"


def _end_of(rank: int) -> str:
    return f"end {rank}"


def _ignore(reason: str) -> None:
    """For jobs that keep no record."""


def _say(line: str) -> None:
    print(f"mep: {line}", file=sys.__stderr__, flush=True)
