"""Mesa-Extrapolation: chunks that see the first one and themselves, and a last one that sees all on a stair."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import Encoding, PairScores
from megatron_mep.extrapolation.log_n import FAR
from megatron_mep.extrapolation.regions import AnyRegionTrick, Region, Regions


class Mesa(AnyRegionTrick):
    """Beyond the training length L, a first chunk of F tokens, then chunks of C, of which the last one sees all keys.

    A query of another chunk sees that and the first one, as if the two were all there is: its place is
    F + (i - F) mod C. A query of the last chunk is at its own place i and sees keys on a stair (Stair PE): with s the
    beginning of the chunk less `recent`, a key j < s is at s - 1 - (s - 1 - j) // E, later ones are at their own. There
    q k is multiplied by max(1, log(i + 1) / log L). No sequence up to L is changed.

    The last chunk is that of the positions that a call is given, cached keys included. So a query that is decoded alone
    sees all keys; and a token that was read as one of the last sees more than it does in a pass over a longer text.
    Logits with cached keys equal those of one pass up to the training length alone; a prompt must be read in one call
    (generation.prefill_chunk no shorter than it) to be what the paper and the published code make of a prompt.

    The paper's: the chunks, the stair, its use on rotations and on biases by distance. The code's: F = 100, E = 50,
    C = L - 2 F, log-n on queries. Ours: the code varies C with the length of a prompt, so that some 500 tokens are left
    to the last chunk, and begins the stair at the last multiple of C, wherever in the last chunk or before it that is;
    here C is constant and the stair begins where the chunk does, or `recent` keys before.

    Source: "Mesa-Extrapolation: A Weave Position Encoding Method for Enhanced Extrapolation in LLMs", arXiv:2410.15859;
    code soacker/Mesa-Extrapolation.
    """

    name: Literal["mesa"] = "mesa"
    source: ClassVar[str] = "arXiv:2410.15859, chunks reconstructed from soacker/Mesa-Extrapolation"
    formula: ClassVar[str] = "own and first chunk; in the last all, j -> s - 1 - (s - 1 - j) // E for j < s"

    first: int = Field(100, ge=1)
    """F, tokens of the first chunk, which all see."""
    chunk: int | None = Field(None, ge=1)
    """C, tokens of every other chunk; the training length less twice the first chunk unless stated."""
    push_width: int = Field(50, ge=1)
    """E, keys of one step of the stair."""
    recent: int = Field(0, ge=0)
    """Keys before the last chunk that are not yet on the stair, so that its first queries know the order of these."""
    log_n: bool = True
    """Whether queries of the last chunk are scaled."""

    def against(self, encoding: Encoding) -> str | None:
        """Besides, it scales queries itself."""
        against = super().against(encoding)
        if against is not None or not self.log_n:
            return against
        factor = encoding.query_factor(torch.tensor([0.0, FAR]))
        if factor is None or factor[0] == factor[1]:
            return None
        return "needs log_n: false, or an encoding under which scores do not grow with the position already"

    def mistakes(self, train_length: int) -> list[Mistake]:
        """A first and another chunk that are longer than what the model was trained on."""
        if self.chunk is None and train_length <= 2 * self.first:
            rule = f"must be less than half the training length {train_length}, which chunks are to fit beside it"
            few = f"set it to {max(train_length // 20, 1)}, or state chunk too"
            return [Mistake("first", self.first, rule, few if train_length > 2 else "leave mesa out")]
        if self.chunk is not None and self.first + self.chunk > train_length:
            rule = f"must fit into the training length {train_length} beside the first={self.first} tokens"
            return [Mistake("chunk", self.chunk, rule, _shorter(train_length, self.first))]
        return []

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The encoding in chunks."""
        assert not self.mistakes(train_length), "they were told before"
        options: dict[str, Any] = self.model_dump(include={"first", "push_width", "recent", "log_n"})
        chunk = self.chunk or train_length - 2 * self.first
        return self.put_on(encoding, Chunks, train_length=train_length, chunk=chunk, **options)


class Chunks(Regions):
    """An encoding by distance in chunks."""

    train_length: int
    first: int
    chunk: int
    push_width: int
    recent: int
    log_n: bool
    num_keys: int = 0
    """Positions of the present call."""

    def at_length(self, num_keys: int) -> PairScores:
        """Itself, knowing which chunk is the last."""
        return super().at_length(num_keys).model_copy(update={"num_keys": num_keys})

    @property
    def last(self) -> int:
        """Where the last chunk begins: at 0 where no chunk is needed."""
        if self.num_keys <= self.train_length:
            return 0
        return self.first + (self.num_keys - 1 - self.first) // self.chunk * self.chunk

    def regions(self, query_position: Tensor, key_position: Tensor) -> Iterator[Region]:
        """Queries before the last chunk, then those in it."""
        assert self.num_keys, "`at_length` comes first"
        in_last = (query_position >= self.last)[:, None]
        own = self._number_of(query_position)[:, None] == self._number_of(key_position)
        own_or_first = own | (key_position < self.first)
        yield Region(~in_last & own_or_first, self._beside_first(query_position), self._beside_first(key_position))
        factor = None
        if self.last and self.log_n:
            factor = ((query_position + 1).log() / math.log(self.train_length)).clamp(min=1)
        yield Region(in_last.expand_as(own), query_position, self._on_stair(key_position), factor)

    def _number_of(self, position: Tensor) -> Tensor:
        """The chunks of positions, -1 for the first one."""
        return torch.floor((position - self.first) / self.chunk).clamp(min=-1)

    def _beside_first(self, position: Tensor) -> Tensor:
        """The places where no chunk stands between a position's own and the first one."""
        return torch.where(position < self.first, position, self.first + (position - self.first) % self.chunk)

    def _on_stair(self, position: Tensor) -> Tensor:
        """The places where keys before the top of the stair go down by one only at every `push_width`."""
        top = max(self.last - self.recent, 0)
        return torch.where(position < top, top - 1 - torch.floor((top - 1 - position) / self.push_width), position)


def _shorter(train_length: int, first: int) -> str:
    """What to do where a chunk does not fit beside the first one."""
    if train_length > first:
        return f"set it to at most {train_length - first}"
    if train_length < 2:
        return "leave mesa out"
    return f"set first below {train_length}, and chunk to what is left"
