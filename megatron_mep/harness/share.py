"""Requests, shared out among the ranks that hold copies of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from megatron_mep.harness.batches import Tokens
from megatron_mep.harness.together import of_everyone
from megatron_mep.parallel.groups import Groups

Request = TypeVar("Request")
Answer = TypeVar("Answer")


def _alone(part: Any) -> list[Any]:
    return [part]


@dataclass(frozen=True)
class Share:
    """This rank's place among those that answer requests together."""

    rank: int = 0
    size: int = 1
    gather: Callable[[Any], list[Any]] = _alone
    """What each of the ranks has, in their order; every one of them calls it equally often."""
    of_everyone: Callable[[Any], list[Any]] = _alone
    """The same of all processes, those that share a model as well."""

    def answered(
        self,
        requests: Sequence[Request],
        texts: Sequence[Tokens],
        answer: Callable[[list[Request]], list[Answer]],
    ) -> list[Answer]:
        """The answers to all requests, on every rank.

        Those about one text are one rank's; `texts` has that of each request. An error must not depend on the share:
        the other ranks would wait.
        """
        in_turn = sorted(set(texts), key=lambda text: (-len(text), text))
        owner = {text: number % self.size for number, text in enumerate(in_turn)}
        places: list[list[int]] = [[] for _ in range(self.size)]
        for place, text in enumerate(texts):
            places[owner[text]].append(place)
        parts = self.gather(answer([requests[place] for place in places[self.rank]]))
        by_place = {
            place: found
            for of_rank, part in zip(places, parts, strict=True)
            for place, found in zip(of_rank, part, strict=True)
        }
        return [by_place[place] for place in range(len(requests))]


def share_of(groups: Groups) -> Share:
    """This process's share among the data-parallel ranks."""

    def gather(part: Any) -> list[Any]:
        parts: list[Any] = [None] * groups.data_size
        dist.all_gather_object(parts, part, group=groups.data_group)
        return parts

    return Share(groups.data_rank, groups.data_size, gather, of_everyone)
