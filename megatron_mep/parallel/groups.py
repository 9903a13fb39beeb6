"""The process groups of a run: who shares a model with this process, and who trains a copy of it."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import distributed
from torch.distributed import ProcessGroup

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.parallel import cpu
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.rendezvous import meet

DEFAULT_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Groups:
    """This process's place on every axis of the mesh.

    rank = ((pipeline_rank * data_size + data_rank) * context_size + context_rank) * tensor_size + tensor_rank
    """

    rank: int
    world_size: int
    tensor_rank: int
    """Which part of every layer is here: with H heads, heads `[tensor_rank * H / tensor_size, ...)`."""
    tensor_size: int
    context_rank: int
    """Which part of every sequence is here; see `Context`."""
    context_size: int
    pipeline_rank: int
    """Which stage is here, with the layers that follow those of the stage before."""
    pipeline_size: int
    data_rank: int
    """Which part of every batch is here."""
    data_size: int
    tensor_group: ProcessGroup
    context_group: ProcessGroup
    pipeline_group: ProcessGroup
    data_group: ProcessGroup
    weights_group: ProcessGroup
    """The processes that hold the same weights: those of the context and of the data axis together."""
    model_group: ProcessGroup
    """The processes that hold one copy of the model: those of the tensor and of the pipeline axis together."""
    device: torch.device

    @property
    def stream(self) -> int:
        """The number of this process's random stream: tensor ranks share one, all others draw apart."""
        copies = self.data_size * self.context_size
        return self.pipeline_rank * copies + self.data_rank * self.context_size + self.context_rank


def initialize(
    environment: Environment,
    parallel: ParallelConfig,
    seed: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    startup_s: float = DEFAULT_TIMEOUT_S,
) -> Groups:
    """Join the processes of the job, make the groups and seed the random streams; to be called once, on every process.

    A default process group that is there already is used as it is.

    Args:
        environment: This process's place in the job.
        parallel: The sizes of the mesh.
        seed: The run's seed; see `seed_streams`.
        timeout_s: How long a collective waits for the slowest process before it fails.
        startup_s: How long the first processes wait for the last one to start.
    """
    data_size = parallel.data(environment.world_size)
    cpu.install()
    device = _device(environment)
    os.environ.update(environment.variables)
    if device.index is not None:
        # DeepSpeed takes the device of this number
        os.environ["LOCAL_RANK"] = str(device.index)
    if not distributed.is_initialized():
        _join(environment, device, timeout_s, startup_s)
    assert distributed.get_world_size() == environment.world_size, "the environment is not that of the default group"
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        context_parallel_size=parallel.context,
        pipeline_model_parallel_size=parallel.pipeline,
        distributed_timeout_minutes=timeout_s / 60,
        create_gloo_process_groups=False,
    )
    seed_streams(seed)
    return Groups(
        rank=environment.rank,
        world_size=environment.world_size,
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        tensor_size=parallel.tensor,
        context_rank=parallel_state.get_context_parallel_rank(),
        context_size=parallel.context,
        pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
        pipeline_size=parallel.pipeline,
        data_rank=parallel_state.get_data_parallel_rank(),
        data_size=data_size,
        tensor_group=parallel_state.get_tensor_model_parallel_group(),
        context_group=parallel_state.get_context_parallel_group(),
        pipeline_group=parallel_state.get_pipeline_model_parallel_group(),
        data_group=parallel_state.get_data_parallel_group(),
        weights_group=parallel_state.get_data_parallel_group(with_context_parallel=True),
        model_group=parallel_state.get_model_parallel_group(),
        device=device,
    )


def seed_streams(seed: int) -> None:
    """Seed torch's default stream, alike on all tensor ranks, and Megatron's stream of tensor-parallel regions.

    Initial weights are drawn alike everywhere when every process is given the same seed. Dropout then is too, on every
    data rank; once the weights are made, a seed that depends on the data rank sets it apart.
    """
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


def shutdown() -> None:
    """Leave all groups; the process may then initialize again."""
    parallel_state.destroy_model_parallel()
    distributed.destroy_process_group()


def device_number(local_rank: int, num_devices: int) -> int:
    """Which of the devices that this process sees is its own: its local rank's, or the only one it was given."""
    if num_devices == 1:
        return 0
    if local_rank >= num_devices:
        raise ConfigError(
            Mistake(
                key="LOCAL_RANK",
                value=local_rank,
                rule=f"must be below the number of devices that the process sees, {num_devices}",
                remedy="start as many processes on a node as it has devices",
            )
        )
    return local_rank


def _device(environment: Environment) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", device_number(environment.local_rank, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _join(environment: Environment, device: torch.device, timeout_s: float, startup_s: float) -> None:
    """Make the default process group, at the master address and port; a process alone needs neither."""
    store = meet(environment, startup_s)
    store.set_timeout(timedelta(seconds=timeout_s))
    distributed.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
