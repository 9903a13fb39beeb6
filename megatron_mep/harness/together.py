"""What all processes of a job find out, where each of them may find a mistake."""

from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import torch.distributed as dist

from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.harness.length import HarnessError

Found = TypeVar("Found")


def of_everyone(part: Any) -> list[Any]:
    """What each process has, in the order of ranks; collective."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    return parts


def found_by_all(act: Callable[[], Found]) -> Found:
    """What this rank finds; the mistakes of any rank are told on all of them, so that none waits; collective."""
    own: tuple[Mistake, ...] = ()
    try:
        found = act()
    except UserError as error:
        own = error.mistakes
    mistakes = dict.fromkeys(chain.from_iterable(of_everyone(own)))
    if mistakes:
        raise HarnessError(mistakes)
    return found
