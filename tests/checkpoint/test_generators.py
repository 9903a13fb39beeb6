"""Random generators go on where a checkpoint left them, where there is something to go on from."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import Tensor

from megatron_mep.checkpoint.state import generator_states, restore_generators
from tests.support.distributed import joined, run
from tests.support.tolerance import assert_exact_equal


def test_both_streams_go_on():
    run(_goes_on, 1)


def _goes_on() -> None:
    joined(seed=1)
    states = generator_states()
    expected = list(_draws())
    restore_generators(states)
    for drawn, there in zip(_draws(), expected, strict=True):
        assert_exact_equal(drawn, there, "what is drawn next")


def test_states_of_a_gpu_leave_the_streams_of_a_cpu_as_they_are():
    run(_stays, 1)


def _stays() -> None:
    joined(seed=1)
    before = generator_states()
    expected = list(_draws())
    restore_generators(before)
    # a GPU's generator has a seed and an offset
    of_gpu = torch.zeros(16, dtype=torch.uint8)
    elsewhere = dict.fromkeys(before["tensor_parallel"], of_gpu)
    restore_generators(
        {"cpu": torch.Generator().manual_seed(5).get_state(), "cuda": of_gpu, "tensor_parallel": elsewhere}
    )
    for drawn, there in zip(_draws(), expected, strict=True):
        assert_exact_equal(drawn, there, "what is drawn next")


def _draws() -> Iterator[Tensor]:
    """From the default stream, and from that of tensor-parallel regions."""
    streams: tuple[AbstractContextManager[None], ...] = (nullcontext(), get_cuda_rng_tracker().fork())
    for stream in streams:
        with stream:
            yield torch.rand(4)
