"""What holds for every test: operations without nondeterminism, on one thread."""

import os

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes, too")
    parser.addoption("--encoding", metavar="module:Class", help="run tests/every_encoding over an encoding of your own")
    parser.addoption("--slurm", action="store_true", help="run tests/slurm, too, on a SLURM that they start")
    parser.addoption("--kills", type=int, default=2, help="how often tests/end_to_end/test_kills.py kills a run (2)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes minutes; left out without --slow")
    config.addinivalue_line("markers", "slurm: on a throw-away SLURM; left out without --slurm")
    config.addinivalue_line("markers", "kind(*classes): of the cases of every encoding, those of these kinds")
    config.addinivalue_line("markers", "cases_that(holds): of the cases of every encoding, those for which it holds")
    # without a GPU, Triton's kernels run by its interpreter; it asks once, while whatever imports it first does so
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    # uninitialised memory then reads as NaN, too
    torch.use_deterministic_algorithms(True)
    # threads of the parent would not survive the fork of tests/support/distributed.py
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with --slow"))
