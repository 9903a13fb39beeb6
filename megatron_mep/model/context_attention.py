"""Attention where every sequence is divided over context ranks: how queries meet the keys of the other ranks."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_mep.model.on_scores import Acting
from megatron_mep.parallel.config import Exchange
from megatron_mep.parallel.context import Context

Attend = Callable[..., Tensor]
"""`(query [B, H, Q, D], key [B, G, K, D], value [B, G, K, E], acting)` -> `[B, H, Q, E]`, queries the last of K."""


@dataclass(frozen=True)
class Shared:
    """Attention of this rank's queries to the keys of all context ranks."""

    context: Context
    exchange: Exchange

    @property
    def computes_all_queries(self) -> bool:
        """Whether this rank computes the queries of other ranks too, in some of the heads."""
        return self.exchange == "ulysses"

    @property
    def told(self) -> str:
        """How ranks share the sequence, for the line at start-up."""
        return f"shared by {self.context.size} context ranks by {self.exchange}"

    def heads(self, num_heads: int) -> slice:
        """Which of a tensor rank's heads act on scores here."""
        if not self.computes_all_queries:
            return slice(0, num_heads)
        part = num_heads // self.context.size
        return slice(self.context.rank * part, (self.context.rank + 1) * part)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, acting: Acting, attend: Attend) -> Tensor:
        """The contexts `[S / N, B, H, E]` of this rank's queries.

        Args:
            query: `[S / N, B, H, D]`, ready to be multiplied with the keys.
            key: `[S / N, B, G, D]`.
            value: `[S / N, B, G, E]`.
            acting: What `acting_on_scores` says of a whole sequence, of the heads that act here.
            attend: A backend's attention; that of a ring takes the ranks as `context`.
        """
        match self.exchange:
            case "all_gather":
                return self._by_all_gather(query, key, value, acting, attend)
            case "ulysses":
                return self._by_ulysses(query, key, value, acting, attend)
            case "ring":
                by_head = (each.permute(1, 2, 0, 3) for each in (query, key, value))
                return attend(*by_head, acting, context=self.context).permute(2, 0, 1, 3)

    def _by_all_gather(self, query: Tensor, key: Tensor, value: Tensor, acting: Acting, attend: Attend) -> Tensor:
        """Each chunk of queries is the last of the keys up to its end."""
        key, value = (self.context.gathered(each, dim=0).permute(1, 2, 0, 3) for each in (key, value))
        outputs, size = [], len(query) // 2
        for number, chunk, first in zip(self.context.chunks, query.split(size), (0, size), strict=True):
            stop = (number + 1) * size
            of_chunk = _until(acting, stop, slice(first, first + size))
            output = attend(chunk.permute(1, 2, 0, 3), key[:, :, :stop], value[:, :, :stop], of_chunk)
            outputs.append(output.permute(2, 0, 1, 3))
        return torch.cat(outputs)

    def _by_ulysses(self, query: Tensor, key: Tensor, value: Tensor, acting: Acting, attend: Attend) -> Tensor:
        """All queries and keys of the heads that act here."""
        key, value = (self._divisible(each) for each in (key, value))
        by_head = (self.context.to_heads(each).permute(1, 2, 0, 3) for each in (query, key, value))
        return self.context.to_tokens(attend(*by_head, acting).permute(2, 0, 1, 3))

    def _divisible(self, groups: Tensor) -> Tensor:
        """Keys or values with groups repeated until the ranks divide their number."""
        copies = self.context.size // math.gcd(groups.size(2), self.context.size)
        return groups.repeat_interleave(copies, dim=2) if copies > 1 else groups


def _until(acting: Acting, stop: int, queries: slice) -> Acting:
    """What acts on some queries and the keys before `stop`; only sums and gains of tokens have an end of their own."""
    if not isinstance(acting, tuple):
        return acting
    sums, gain = acting
    return sums[..., :stop], None if gain is None else gain[..., queries]
