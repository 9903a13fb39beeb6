"""Sequences divided over context ranks: who holds which tokens, and how tensors are divided and put together again.

A sequence is cut into 2 N chunks for N ranks, and rank r holds chunks r and 2 N - 1 - r: under a causal mask early
queries see few keys and late ones many, so that each rank has as much to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Context:
    """This rank among those that share every sequence; alone where there is no group."""

    group: ProcessGroup | None = None

    @cached_property
    def size(self) -> int:
        """Ranks that share a sequence."""
        return self.group.size() if self.group is not None else 1

    @cached_property
    def rank(self) -> int:
        """Which of them this one is."""
        return self.group.rank() if self.group is not None else 0

    @property
    def chunks(self) -> tuple[int, int]:
        """The numbers of the chunks that are here, in order."""
        return self.chunks_of(self.rank)

    def chunks_of(self, rank: int) -> tuple[int, int]:
        """The numbers of the chunks that a rank holds, in order."""
        return rank, 2 * self.size - 1 - rank

    def own(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's part of what all ranks hold alike; no gradient leaves this rank."""
        if self.size == 1:
            return whole
        assert whole.size(dim) % (2 * self.size) == 0, f"{whole.size(dim)} tokens do not divide into {2 * self.size}"
        chunks = whole.chunk(2 * self.size, dim)
        return torch.cat([chunks[number] for number in self.chunks], dim)

    def gathered(self, part: Tensor, dim: int) -> Tensor:
        """The whole of what is here in parts, in the order of the sequence.

        Each rank may do something else with it: the gradient of a part is summed over all ranks.
        """
        if self.size == 1:
            return part
        whole: Tensor = _Gathered.apply(part, dim, self)
        return whole

    def whole(self, part: Tensor, dim: int) -> Tensor:
        """The same where all ranks go on alike.

        The gradient of a part is N times that of this rank's whole: averaged over the ranks, as gradients are over data
        ranks too, those of weights are the gradients of what all ranks have gone on to.
        """
        if self.size == 1:
            return part
        whole: Tensor = _Whole.apply(part, dim, self)
        return whole

    def to_heads(self, part: Tensor) -> Tensor:
        """`[S / N, B, H, D]` of all heads -> `[S, B, H / N, D]`: the whole sequence of some, in its order."""
        heads: Tensor = _ToHeads.apply(part, self)
        return heads

    def to_tokens(self, heads: Tensor) -> Tensor:
        """The way back: `[S, B, H / N, D]` -> `[S / N, B, H, D]`."""
        part: Tensor = _ToTokens.apply(heads, self)
        return part

    def in_order(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """The whole of every rank's part."""
        halves = {
            number: half
            for rank, part in enumerate(parts)
            for number, half in zip(self.chunks_of(rank), part.chunk(2, dim), strict=True)
        }
        return torch.cat([halves[number] for number in range(2 * self.size)], dim)

    def by_rank(self, whole: Tensor, dim: int) -> list[Tensor]:
        """Every rank's part of the whole, each contiguous."""
        chunks = whole.chunk(2 * self.size, dim)
        return [
            torch.cat([chunks[number] for number in self.chunks_of(rank)], dim).contiguous()
            for rank in range(self.size)
        ]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, context: Context) -> Tensor:
        ctx.dim, ctx.context = dim, context
        return _gather(part, dim, context)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        context: Context = ctx.context
        # in fp32 or wider: each rank gives a part of the sum
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        parts = torch.stack(context.by_rank(wide, ctx.dim))
        mine = torch.empty_like(parts[0])
        distributed.reduce_scatter_tensor(mine, parts.flatten(0, 1), group=context.group)
        return mine.to(gradient.dtype), None, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, context: Context) -> Tensor:
        ctx.dim, ctx.context = dim, context
        return _gather(part, dim, context)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        context: Context = ctx.context
        return context.size * context.own(gradient, ctx.dim), None, None


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, context: Context) -> Tensor:
        ctx.context = context
        return _to_heads(part, context)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _to_tokens(gradient, ctx.context), None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, context: Context) -> Tensor:
        ctx.context = context
        return _to_tokens(heads, context)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _to_heads(gradient, ctx.context), None


def _gather(part: Tensor, dim: int, context: Context) -> Tensor:
    parts = part.new_empty((context.size, *part.shape))
    distributed.all_gather_into_tensor(parts.flatten(0, 1), part.contiguous(), group=context.group)
    return context.in_order(list(parts), dim)


def _to_heads(part: Tensor, context: Context) -> Tensor:
    sent = torch.stack(part.chunk(context.size, dim=2))
    return context.in_order(list(_exchanged(sent, context)), dim=0)


def _to_tokens(heads: Tensor, context: Context) -> Tensor:
    sent = torch.stack(context.by_rank(heads, dim=0))
    return torch.cat(list(_exchanged(sent, context)), dim=2)


def _exchanged(sent: Tensor, context: Context) -> Tensor:
    """Entry r goes to rank r, and what rank r has sent comes in its place."""
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=context.group)
    return received
