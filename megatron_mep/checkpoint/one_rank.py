"""What one rank does for all, and what it finds out."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from megatron_mep.config.errors import CheckpointError, Mistake, UserError

Told = TypeVar("Told")


def told_by_rank_0(act: Callable[[], Told]) -> Told:
    """What rank 0 alone finds out, on every rank, and likewise the user's mistakes; collective."""
    told: list[tuple[Told | None, tuple[Mistake, ...]]] = [(None, ())]
    if dist.get_rank() == 0:
        try:
            told = [(act(), ())]
        except UserError as error:
            told = [(None, error.mistakes)]
    dist.broadcast_object_list(told, src=0)
    ((found, mistakes),) = told
    if mistakes:
        raise CheckpointError(mistakes)
    return found  # type: ignore[return-value]
