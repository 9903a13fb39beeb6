"""An encoding's weights as a module: drawn for all heads, this rank's heads kept, always fp32."""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group, make_sharded_tensors_for_checkpoint
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from megatron_mep.encodings.base import Weight


class EncodingWeights(nn.Module):
    """The weights of an encoding in one layer, or at the embeddings; called, it returns what the formula takes.

    Args:
        declared: The weights by name, for all heads.
        num_heads: Query heads of the whole model, H.
        tensor_rank: Which heads are here: `[tensor_rank * H / tensor_size, (tensor_rank + 1) * H / tensor_size)`.
        tensor_size: Over how many ranks the heads are divided.
        tensor_group: Those ranks; may be `None` where `tensor_size` is 1.
        gives_parts: Whether each rank gives a part of the gradient of weights that are not per head, as in attention,
            where it uses them for its own heads; all give the whole of it where all compute the same.

    The modules above it must build their sharded state dict from their children's, as Megatron's `MegatronModule` does.
    """

    def __init__(
        self,
        declared: dict[str, Weight],
        num_heads: int,
        tensor_rank: int = 0,
        tensor_size: int = 1,
        tensor_group: ProcessGroup | None = None,
        gives_parts: bool = True,
    ) -> None:
        super().__init__()
        assert num_heads % tensor_size == 0, f"{tensor_size} tensor ranks cannot share {num_heads} heads"
        assert tensor_size == 1 or tensor_group is not None, "several tensor ranks need their group"
        self._tensor_group, self._gives_parts = tensor_group, gives_parts
        self._per_head = frozenset(name for name, weight in declared.items() if weight.per_head)
        for name, weight in declared.items():
            assert weight.value.dtype == torch.float32, f"weight {name} must be fp32"
            assert not weight.per_head or len(weight.value) == num_heads, f"dim 0 of weight {name} must be the heads"
            value = weight.value.chunk(tensor_size)[tensor_rank].clone() if weight.per_head else weight.value
            if weight.learned:
                self.register_parameter(name, _parameter(value, weight.per_head))
            else:
                self.register_buffer(name, value)

    def forward(self) -> dict[str, Tensor]:
        """The weights by name, those per head with this rank's heads in dim 0."""
        learned = {name: self._as_used(name, parameter) for name, parameter in self.named_parameters()}
        return learned | dict(self.named_buffers())

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[tuple[int, int, int], ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> ShardedStateDict:
        """All weights, constants too, in Megatron's form: those per head are parts of a tensor of H heads."""
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True),
            prefix,
            dict.fromkeys(self._per_head, 0),
            sharded_offsets,
            tp_group=self._tensor_group,
            dp_cp_group=ensure_metadata_has_dp_cp_group(metadata)["dp_cp_group"],
        )

    def _as_used(self, name: str, parameter: nn.Parameter) -> Tensor:
        if name not in self._per_head and self._gives_parts and self._tensor_group is not None:
            return shared_by(self._tensor_group, parameter)
        # ZeRO 3 takes a parameter's memory away once the forward pass of its module is over
        return parameter.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "EncodingWeights":
        """Follow the tree above to another device, never to another dtype: slopes rounded to bf16 are other slopes."""

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        return super()._apply(moved, recurse)


def is_encoding_weight(parameter: nn.Parameter) -> bool:
    """Whether the parameter belongs to an encoding: it is fp32 in a model of any type, and takes no weight decay."""
    return getattr(parameter, "encoding_weight", False)


def shared_by(group: ProcessGroup, tensor: Tensor) -> Tensor:
    """A copy of a tensor that all ranks hold alike, each of which gives a part of its gradient: they are summed.

    Megatron-core's `copy_to_tensor_model_parallel_region` sums no gradient that is not contiguous.
    """
    copy: Tensor = _Shared.apply(tensor, group)
    return copy


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=ctx.group)
        return total, None


def _parameter(value: Tensor, per_head: bool) -> nn.Parameter:
    parameter = nn.Parameter(value)
    set_tensor_model_parallel_attributes(parameter, is_parallel=per_head, dim=0 if per_head else -1, stride=1)
    parameter.encoding_weight = True  # type: ignore[attr-defined]
    return parameter
