"""What holds for every test: operations without nondeterminism, on one thread."""

import torch


def pytest_configure() -> None:
    # uninitialised memory then reads as NaN, too
    torch.use_deterministic_algorithms(True)
    # threads of the parent would not survive the fork of tests/support/distributed.py
    torch.set_num_threads(1)
