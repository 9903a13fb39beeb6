import os

import pytest
import torch
from megatron.core import parallel_state
from torch import distributed

from megatron_mep.config.errors import ConfigError
from megatron_mep.parallel import groups
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import device_number
from megatron_mep.parallel.mpu import ModelParallelUnit
from tests.support.distributed import joined, run


def test_tensor_ranks_are_neighbours_and_data_ranks_stand_apart():
    run(_mesh_of_four, 4)


def _mesh_of_four():
    here = joined(tensor=2)
    rank = distributed.get_rank()
    assert (here.rank, here.world_size, here.tensor_size, here.data_size) == (rank, 4, 2, 2)
    assert (here.tensor_rank, here.data_rank) == (rank % 2, rank // 2)
    assert distributed.get_process_group_ranks(here.tensor_group) == ([0, 1] if rank < 2 else [2, 3])
    assert distributed.get_process_group_ranks(here.data_group) == ([0, 2] if rank % 2 == 0 else [1, 3])
    assert here.device == torch.device("cpu")
    total = torch.tensor(float(2**rank))
    distributed.all_reduce(total, group=here.data_group)
    assert total.item() == (1 + 4 if rank % 2 == 0 else 2 + 8)

    unit = ModelParallelUnit(here)
    assert unit.get_tensor_model_parallel_group() is here.tensor_group
    assert distributed.get_process_group_ranks(unit.get_model_parallel_group()) == [
        rank - rank % 2,
        rank - rank % 2 + 1,
    ]
    assert unit.get_model_parallel_world_size() == unit.get_tensor_model_parallel_world_size() == 2
    assert unit.get_model_parallel_rank() == unit.get_tensor_model_parallel_rank() == rank % 2
    assert unit.get_tensor_model_parallel_src_rank() == rank - rank % 2
    assert (unit.get_pipeline_model_parallel_rank(), unit.get_pipeline_model_parallel_world_size()) == (0, 1)
    assert unit.get_data_parallel_group() is here.weights_group
    assert (unit.get_data_parallel_rank(), unit.get_data_parallel_world_size()) == (rank // 2, 2)
    assert unit.get_data_parallel_group_ranks() == [rank % 2, rank % 2 + 2]


def test_context_ranks_stand_between_tensor_and_data_ranks():
    run(_mesh_of_eight, 8)


def _mesh_of_eight():
    here = joined(tensor=2, context=2)
    rank = distributed.get_rank()
    assert (here.tensor_rank, here.context_rank, here.data_rank) == (rank % 2, rank // 2 % 2, rank // 4)
    assert (here.tensor_size, here.context_size, here.data_size) == (2, 2, 2)
    assert here.stream == rank // 2
    first = rank - rank % 4 + rank % 2
    assert distributed.get_process_group_ranks(here.context_group) == [first, first + 2]
    assert distributed.get_process_group_ranks(here.data_group) == [rank % 4, rank % 4 + 4]
    same_weights = list(range(rank % 2, 8, 2))
    assert distributed.get_process_group_ranks(here.weights_group) == same_weights

    # ZeRO parts the weights, and averages their gradients, over all that hold them
    unit = ModelParallelUnit(here)
    assert unit.get_data_parallel_group_ranks() == same_weights
    assert (unit.get_data_parallel_rank(), unit.get_data_parallel_world_size()) == (rank // 2, 4)


def test_stages_stand_apart_the_most():
    run(_mesh_with_stages, 8)


def _mesh_with_stages():
    here = joined(tensor=2, pipeline=2)
    rank = distributed.get_rank()
    assert (here.tensor_rank, here.data_rank, here.pipeline_rank) == (rank % 2, rank // 2 % 2, rank // 4)
    assert (here.pipeline_size, here.data_size) == (2, 2)
    # dropout acts in other layers on every stage
    assert here.stream == rank // 2
    assert distributed.get_process_group_ranks(here.pipeline_group) == [rank % 4, rank % 4 + 4]
    first = rank % 4 // 2 * 2
    assert distributed.get_process_group_ranks(here.model_group) == [first, first + 1, first + 4, first + 5]
    same_weights = [rank // 4 * 4 + rank % 2, rank // 4 * 4 + rank % 2 + 2]
    assert distributed.get_process_group_ranks(here.weights_group) == same_weights

    # the norm of the gradient is that of all stages; what tensor ranks hold alike counts on the first of them
    unit = ModelParallelUnit(here)
    assert unit.get_model_parallel_group() is here.model_group
    assert unit.get_model_parallel_world_size() == 4
    assert unit.get_tensor_model_parallel_rank() == rank % 2
    assert (unit.get_pipeline_model_parallel_rank(), unit.get_pipeline_model_parallel_world_size()) == (rank // 4, 2)


def test_two_processes_are_data_parallel_or_tensor_parallel_one_after_the_other():
    run(_twice, 2)


def _twice():
    rank = distributed.get_rank()
    apart = joined()
    assert (apart.tensor_size, apart.data_size, apart.tensor_rank, apart.data_rank) == (1, 2, 0, rank)
    parallel_state.destroy_model_parallel()
    together = joined(tensor=2)
    assert (together.tensor_size, together.data_size, together.tensor_rank, together.data_rank) == (2, 1, rank, 0)


def test_a_process_alone_needs_no_port_and_may_start_again():
    run(_alone, 1)


def _alone():
    distributed.destroy_process_group()
    # no such host, no such port: whoever used them would fail
    environment = Environment(master_addr="nowhere.invalid", master_port=0)
    for _ in range(2):
        here = groups.initialize(environment, ParallelConfig(), timeout_s=2)
        assert (here.world_size, here.tensor_size, here.data_size) == (1, 1, 1)
        distributed.barrier()
        assert os.environ["LOCAL_RANK"] == "0"
        assert os.environ["DS_ACCELERATOR"] == "cpu"
        groups.shutdown()
        assert not distributed.is_initialized()


def test_an_impossible_mesh_is_refused_before_anything_is_joined():
    with pytest.raises(ConfigError, match=r"parallel\.tensor"):
        groups.initialize(Environment(world_size=3), ParallelConfig(tensor=2))
    assert not distributed.is_initialized()


@pytest.mark.parametrize(("local_rank", "num_devices", "expected"), [(0, 8, 0), (7, 8, 7), (0, 1, 0), (5, 1, 0)])
def test_a_process_takes_the_device_of_its_local_rank_or_the_only_one_it_sees(local_rank, num_devices, expected):
    assert device_number(local_rank, num_devices) == expected


def test_more_processes_than_devices_on_a_node_are_refused():
    with pytest.raises(ConfigError, match="LOCAL_RANK"):
        device_number(4, 4)
