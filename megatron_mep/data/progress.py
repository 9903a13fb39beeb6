"""Says how far a long pass over the documents is, how fast it goes and when it ends."""

import time
from collections.abc import Callable


class Progress:
    """Reports now and then; the rest of the time it only counts."""

    def __init__(self, report: Callable[[str], None], action: str, total: int, interval_s: float = 5.0) -> None:
        """Begin to count; `total` is what `position` will have reached at the end."""
        self._report = report
        self._action = action
        self._total = total
        self._interval_s = interval_s
        self._began_s = self._reported_s = time.monotonic()
        self._num_documents = 0
        self._num_bytes = 0

    def advance(self, num_documents: int, num_bytes: int, position: int) -> None:
        """Count documents and bytes of text; `position` is how far into the source they end."""
        self._num_documents += num_documents
        self._num_bytes += num_bytes
        now_s = time.monotonic()
        if now_s - self._reported_s >= self._interval_s:
            self._reported_s = now_s
            self._report(self._line(now_s - self._began_s, position))

    def _line(self, elapsed_s: float, position: int) -> str:
        megabytes = self._num_bytes / 1e6
        speed = megabytes / elapsed_s if elapsed_s else 0.0
        line = f"{self._action}: {self._num_documents} documents, {megabytes:.1f} MB, {speed:.1f} MB/s"
        if 0 < position <= self._total:
            line += f", {elapsed_s * (self._total - position) / position:.0f} s left"
        return line
