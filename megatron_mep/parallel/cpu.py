"""What Megatron-core 0.16.1 needs on a machine without CUDA: devices, random streams and literals that say "cuda".

Megatron's own optimizer, data-parallel wrapper and rotary embeddings are not adapted: this project calls none of them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from megatron.core.dist_checkpointing import exchange_utils
from megatron.core.dist_checkpointing.strategies import state_dict_saver
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel import data
from megatron.core.tensor_parallel import random as streams
from torch import Tensor


def install() -> None:
    """Make Megatron-core run on this machine's CPU; does nothing where there is CUDA, or where it is done already."""
    if torch.cuda.is_available() or torch.cuda.current_device is _current_device:
        return
    for replacement in REPLACED:
        replacement.install()
    for function in SAYING_CUDA:
        say_cpu(function)
    # Megatron decorates small functions with torch.compile, which would need a C++ compiler at the first call
    torch.compiler.set_stance("force_eager")
    # DeepSpeed guesses the accelerator while it is imported, and guesses Apple's on a Mac
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def _current_device() -> torch.device:
    return torch.device("cpu")


def _synchronize(device: Any = None) -> None:
    """Nothing runs behind the CPU's back."""


def _stay(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG001
    return tensor


def _get_state(device: Any = None, **kwargs: Any) -> Tensor:  # noqa: ARG001
    return torch.get_rng_state()


def _set_state(state: Tensor, device: Any = None, **kwargs: Any) -> None:  # noqa: ARG001
    torch.set_rng_state(state)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)


class CpuStates(streams.CudaRNGStatesTracker):
    """Megatron's named random streams over the CPU's only generator."""

    _current_state_name: str

    @contextmanager
    def fork(self, name: str = streams._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
        """Draw from the stream `name` inside, and from the outer one again afterwards.

        Megatron's own warns whenever the CPU's generator has moved meanwhile, which here it is meant to.
        """
        outer, outer_state = self._current_state_name, torch.get_rng_state()
        if outer in self.states_:
            self.states_[outer] = outer_state
        torch.set_rng_state(self.states_[name])
        self._current_state_name = name
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(self.states_.get(outer, outer_state))
            self._current_state_name = outer


@dataclass(frozen=True)
class Replaced:
    """An attribute that Megatron-core reads, and what it finds there instead."""

    owner: Any
    name: str
    by: Callable[..., Any]

    def install(self) -> None:
        """Put the replacement in place."""
        assert hasattr(self.owner, self.name), f"{self.owner.__name__}.{self.name} is gone: megatron-core has changed"
        setattr(self.owner, self.name, self.by)


REPLACED = (
    # where buffers are made: gathers and scatters of sequence parallelism, pipeline messages, KV cache
    Replaced(torch.cuda, "current_device", _current_device),
    # before a checkpoint is written, around timers and pipeline messages
    Replaced(torch.cuda, "synchronize", _synchronize),
    # broadcast_data, exchange of loaded shards, tied embeddings under pipeline parallelism
    Replaced(Tensor, "cuda", _stay),
    # model_parallel_cuda_manual_seed and CudaRNGStatesTracker.add
    Replaced(torch.cuda, "manual_seed", _seed),
    Replaced(torch.cuda, "get_rng_state", _get_state),
    # recomputation of activations, which restores the streams of the first forward pass
    Replaced(streams, "_get_cuda_rng_state", _get_state),
    Replaced(streams, "_set_cuda_rng_state", _set_state),
    # initialize_rng_tracker; its fork is called around dropout and initial weights
    Replaced(streams, "CudaRNGStatesTracker", CpuStates),
)

SAYING_CUDA: tuple[FunctionType, ...] = (
    # the count of tokens that each schedule keeps
    schedules.forward_backward_no_pipelining,
    schedules.forward_backward_pipelining_with_interleaving,
    schedules.forward_backward_pipelining_without_interleaving,
    # the sizes that broadcast_data sends ahead
    data._build_key_size_numel_dictionaries,
    # whether a checkpoint may reuse the last one's metadata
    state_dict_saver.verify_global_md_reuse,
    # shards that were loaded once and are handed to the ranks that need them too
    exchange_utils._get_empty_tensor_for_exchange,
)
"""Functions whose code holds the literal "cuda" as a device."""


def say_cpu(function: FunctionType) -> None:
    """Write "cpu" for the literal "cuda" in the function's code."""
    constants = function.__code__.co_consts
    assert "cuda" in constants, f"{function.__qualname__} no longer says 'cuda': megatron-core has changed"
    changed = tuple("cpu" if constant == "cuda" else constant for constant in constants)
    function.__code__ = function.__code__.replace(co_consts=changed)
