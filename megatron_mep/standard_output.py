"""Standard output whose reader, such as `head`, may leave before the end."""

import os
import select
import signal
import sys

READER_LEFT = 128 + signal.SIGPIPE
"""The exit code of a program that ends for it, as shells tell it."""


def reader_left() -> bool:
    """Whether nobody reads standard output any more; what is still buffered then goes nowhere, without complaint."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)
    left = any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0))
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return left
