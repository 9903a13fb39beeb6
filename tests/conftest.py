"""What holds for every test: operations without nondeterminism, on one thread."""

import os

import torch


def pytest_configure() -> None:
    # without a GPU, Triton's kernels run by its interpreter; it asks once, while whatever imports it first does so
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    # uninitialised memory then reads as NaN, too
    torch.use_deterministic_algorithms(True)
    # threads of the parent would not survive the fork of tests/support/distributed.py
    torch.set_num_threads(1)
