"""Our groups, asked for by the names that DeepSpeed's `mpu` argument uses."""

from dataclasses import dataclass

from torch import distributed
from torch.distributed import ProcessGroup

from megatron_mep.parallel.groups import Groups


@dataclass(frozen=True)
class ModelParallelUnit:
    """What DeepSpeed asks a model parallel unit.

    Its "model parallel" group holds one copy of the model: it sums the squared gradient norm over it, in which a
    weight that every tensor rank holds whole counts once. Here that is the tensor and the pipeline axis together.

    Its "data parallel" group is that over which ZeRO parts the weights and averages gradients: all processes that hold
    the same weights, those of the context and of the data axis. DeepSpeed knows a sequence axis of its own, over which
    gradients are summed, but ZeRO 3 parts weights and reduces gradients without it.
    """

    groups: Groups

    def get_model_parallel_rank(self) -> int:
        """Rank among the processes that hold one copy of the model."""
        return self.groups.model_group.rank()

    def get_model_parallel_world_size(self) -> int:
        """Processes that hold one copy of the model."""
        return self.groups.model_group.size()

    def get_model_parallel_group(self) -> ProcessGroup:
        """The processes that hold one copy of the model."""
        return self.groups.model_group

    def get_tensor_model_parallel_rank(self) -> int:
        """Rank among the processes that share every layer."""
        return self.groups.tensor_rank

    def get_tensor_model_parallel_world_size(self) -> int:
        """Processes that share every layer."""
        return self.groups.tensor_size

    def get_tensor_model_parallel_group(self) -> ProcessGroup:
        """The processes that share every layer."""
        return self.groups.tensor_group

    def get_tensor_model_parallel_src_rank(self) -> int:
        """The lowest global rank of the tensor group."""
        return distributed.get_global_rank(self.groups.tensor_group, 0)

    def get_pipeline_model_parallel_rank(self) -> int:
        """Rank among the processes that share the layers."""
        return self.groups.pipeline_rank

    def get_pipeline_model_parallel_world_size(self) -> int:
        """Processes that share the layers."""
        return self.groups.pipeline_size

    def get_data_parallel_rank(self) -> int:
        """Rank among the processes that hold the same weights."""
        return self.groups.weights_group.rank()

    def get_data_parallel_world_size(self) -> int:
        """Processes that hold the same weights."""
        return self.groups.weights_group.size()

    def get_data_parallel_group(self) -> ProcessGroup:
        """The processes that hold the same weights."""
        return self.groups.weights_group

    def get_data_parallel_group_ranks(self) -> list[int]:
        """The global ranks of these processes."""
        return distributed.get_process_group_ranks(self.groups.weights_group)
