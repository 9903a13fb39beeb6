"""Several processes for one test: forked, joined by gloo through a file, one thread each."""

import tempfile
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed, multiprocessing
from torch.multiprocessing.spawn import ProcessException

from megatron_mep.parallel import groups
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups

TIMEOUT_S = 30


def run(body: Callable[..., None], world_size: int, *args: object) -> None:
    """Run `body(*args)` on several CPU processes joined by gloo; the first failure is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            _rank, (world_size, f"file://{folder}/store", body, args), nprocs=world_size, start_method="fork"
        )


def run_and_kill(body: Callable[..., None], world_size: int, rank: int, after_s: float, *args: object) -> bool:
    """The same, with SIGKILL for one rank after a time, as the kernel would; whether the job was still going on.

    The others are ended as a launcher ends them.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.start_processes(
            _rank,
            (world_size, f"file://{folder}/store", body, args),
            nprocs=world_size,
            start_method="fork",
            join=False,
        )
        if context.join(after_s):
            return False
        context.processes[rank].kill()
        try:
            while not context.join():
                pass
        except ProcessException:
            return True
        return False


def joined(seed: int = 0, **parallel: int | bool) -> Groups:
    """The groups of `run`'s processes; to be called once by each, with the fields of `ParallelConfig`."""
    environment = Environment(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    return groups.initialize(environment, ParallelConfig.model_validate(parallel), seed, TIMEOUT_S)


def _rank(rank: int, world_size: int, store: str, body: Callable[..., None], args: tuple[object, ...]) -> None:
    # the parent's OpenMP threads do not survive the fork: waiting for them would hang
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=TIMEOUT_S)
    )
    try:
        body(*args)
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
