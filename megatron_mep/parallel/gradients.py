"""The gradients that ranks compute in parts and DeepSpeed would leave unsummed."""

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup


def sum_over_tensor_ranks(model: nn.Module, tensor_group: ProcessGroup) -> None:
    """Sum the gradients of every parameter marked `sequence_parallel`, as part of every backward pass.

    Under sequence parallelism each tensor rank sees a part of the sequence where such a parameter acts: norms, and
    biases of row-parallel layers. Megatron-core sums their gradients when it finalizes a step, DeepSpeed never does.
    """
    if distributed.get_world_size(tensor_group) == 1:
        return
    for parameter in model.parameters():
        if getattr(parameter, "sequence_parallel", False):
            # before accumulation: what an earlier micro-batch added to the gradient is summed already
            parameter.register_hook(_Sum(tensor_group))


def mark_copies(parameter: nn.Parameter, group: ProcessGroup) -> None:
    """Has DeepSpeed count a parameter once in the norm of the whole gradient, which several pipeline stages hold."""
    parameter.ds_pipe_replicated = group.rank() > 0  # type: ignore[attr-defined]


def is_copy(parameter: nn.Parameter) -> bool:
    """Whether an earlier pipeline stage holds the same parameter."""
    return getattr(parameter, "ds_pipe_replicated", False)


class _Sum:
    """A gradient's sum over the group, taken in fp32 or wider."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def __call__(self, gradient: Tensor) -> Tensor:
        total = gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True)
        distributed.all_reduce(total, group=self._group)
        return total.to(gradient.dtype)
