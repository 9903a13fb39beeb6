"""The gradients that wait for an update: looked at before it, and thrown away where there is to be none.

DeepSpeed itself leaves out the update of a gradient that is not finite under ZeRO 1 to 3 in fp32 and ZeRO 3 in bf16.
Without ZeRO, and under ZeRO 1 and 2 in bf16, it makes weights NaN; and it never looks at the loss.
"""

import math
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from megatron_mep.model.copies import copies_of

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


def measured(engine: "DeepSpeedEngine", loss: Tensor, beside: list[float] | None = None) -> tuple[float, float]:
    """The mean of all ranks' losses and a bound of the whole gradient's norm, by one all-reduce of two numbers.

    All ranks get the same bits, so what they decide by them is the same. The bound is not finite where anything in a
    gradient is not, or where the norm overflows fp32. Numbers `beside` these travel along, and become their sums.
    """
    norm = nn.utils.get_total_norm(waiting_gradients(engine)).to(loss.device, torch.float32)
    own = torch.stack([loss.detach(), norm]).double()
    numbers = torch.cat([own, own.new_tensor(beside or [])])
    numbers[1].square_()
    distributed.all_reduce(numbers)
    total_loss, squares, *sums = numbers.tolist()
    if beside is not None:
        beside[:] = sums
    # where ranks hold terms of a sum, the sum's square is at most theirs times their number (Cauchy-Schwarz)
    num_ranks = distributed.get_world_size()
    bound = squares * num_ranks
    # DeepSpeed sums squares in fp32
    return total_loss / num_ranks, math.sqrt(bound) if bound < torch.finfo(torch.float32).max else math.inf


def waiting_gradients(engine: "DeepSpeedEngine") -> list[Tensor]:
    """What this rank holds of the gradient between the last backward pass and the update."""
    optimizer = engine.optimizer
    held: Iterator[Tensor | None] = (_gradient(parameter) for parameter in engine.module.parameters())
    if engine.zero_optimization_partition_gradients():
        held = chain.from_iterable(group or () for group in _partitions(optimizer))
    return [gradient for gradient in held if gradient is not None]


def sum_over_stages(engine: "DeepSpeedEngine") -> None:
    """Sums the gradients of weights that several pipeline stages hold, once all micro-batches are through."""
    for copy in copies_of(engine.module):
        gradient = _gradient(copy.parameter)
        assert gradient is not None, f"{copy.name} is there and has no gradient"
        distributed.all_reduce(gradient, group=copy.group)


def discard_gradients(engine: "DeepSpeedEngine") -> None:
    """Lets the next backward pass begin anew, as after an update."""
    optimizer = engine.optimizer
    if not engine.zero_optimization():
        engine.zero_grad()
        return
    optimizer.zero_grad(set_to_none=True)
    for groups in _by_group(optimizer):
        for gradient in chain.from_iterable(group or () for group in groups.values()):
            # ZeRO 3 keeps these tensors: a weight that has no gradient in the next step is updated by what is there
            gradient.zero_()
        groups.clear()


def _gradient(parameter: nn.Parameter) -> Tensor | None:
    """ZeRO 1 adds the micro-batches' bf16 gradients up in a tensor of its own."""
    accumulated = getattr(parameter, "grad_accum", None)
    return parameter.grad if accumulated is None else accumulated


def _partitions(optimizer: Any) -> Iterator[list[Tensor] | None]:
    """What ZeRO 2 and 3 keep of the gradient on this rank, by parameter group; `None` where that is elsewhere."""
    return chain.from_iterable(groups.values() for groups in _by_group(optimizer))


def _by_group(optimizer: Any) -> list[dict[int, list[Tensor] | None]]:
    # ZeRO 2 accumulates fp32 gradients in the second and bf16 ones in the first; ZeRO 3 has the first alone
    return [getattr(optimizer, name) for name in ("averaged_gradients", "all_grad_tensors") if hasattr(optimizer, name)]
