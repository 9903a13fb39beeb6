"""What a way to compute attention says of itself: what it serves, what stands against it, and how it is called."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import DistanceBias, Encoding

Attend = Callable[..., Tensor]
"""`attend(query [B, H, Q, D], key [B, G, K, D], value, bias, scale=...)`, the queries being the last of the positions.

What `bias` is depends on the kind of encoding: `None`; by distance, `[H, N >= K]`; or a function, see the backend.
"""


@dataclass(frozen=True)
class Backend:
    """A way to compute attention that serves all that was asked for."""

    name: str
    reason: str
    """Why it was chosen and what it costs, for the line at start-up."""
    attend: Attend
    counts_work: bool = False
    """Whether `attend` takes `work=Work()` and adds to it what it computed and dropped."""
    takes_bound: bool = False
    """Whether `attend` takes `bound=`, the largest score that any query and key can have, where that is known."""
    step: Attend | None = None
    """Where there is one, for a single query: `step(query, key, value, scale=..., decoding=..., work=...)`."""


@dataclass(frozen=True)
class Request:
    """What is asked of a backend."""

    encoding: Encoding
    device_type: str
    dtype: torch.dtype
    head_size: int
    training: bool
    dropout: float
    """What acts: 0 outside training."""
    epsilon: float
    """Share of a row's softmax that may be dropped."""
    backend: str
    """`model.attention_backend`."""

    def against(self, rule: str, remedy: str) -> Mistake:
        """A mistake in the choice of the backend."""
        return Mistake("model.attention_backend", self.backend, rule, remedy)


class Row(ABC):
    """One backend in the table that `choose` reads."""

    name: ClassVar[str]
    automatic: ClassVar[bool] = True
    """Whether it may be chosen without being named."""
    computes_on: ClassVar[str | None] = None
    """The only type of device on which it computes."""

    def rank(self, request: Request) -> int:  # noqa: ARG002
        """Of several that serve, those of the lowest rank come first."""
        return 0

    @abstractmethod
    def knows(self, encoding: Encoding) -> bool:
        """Whether it can compute this kind of encoding somewhere."""

    @abstractmethod
    def mistakes(self, request: Request) -> list[Mistake]:
        """What stands against it; empty where it serves."""

    @abstractmethod
    def reason(self, request: Request) -> str:
        """Why it serves."""

    @abstractmethod
    def attend(self, request: Request) -> Attend:
        """The function to call."""

    def step(self, request: Request) -> Attend | None:  # noqa: ARG002
        """The function to call with a single query, where there is a faster one."""
        return None

    def takes_bound(self, request: Request) -> bool:  # noqa: ARG002
        """Whether the function takes `bound`."""
        return False

    def counts_work(self, request: Request) -> bool:  # noqa: ARG002
        """Whether the function takes `work`."""
        return False


def no_dropout(request: Request) -> list[Mistake]:
    """The mistake of asking for dropout where none can be had."""
    if not request.dropout:
        return []
    rule = f"must be 0 in training under {request.encoding.name}: its attention drops no weights"
    return [Mistake("model.attention_dropout", request.dropout, rule, "set it to 0, or use model.hidden_dropout")]


class OfDistance(Row):
    """A backend of biases by distance, which may leave out keys too far back to matter."""

    def knows(self, encoding: Encoding) -> bool:  # noqa: D102
        return isinstance(encoding, DistanceBias)

    def counts_work(self, request: Request) -> bool:  # noqa: D102
        return request.epsilon > 0

    def mistakes(self, request: Request) -> list[Mistake]:  # noqa: D102
        mistakes = no_dropout(request)
        if request.device_type != self.computes_on:
            rule = f"{self.name} computes on {self.computes_on}, not on {request.device_type}"
            mistakes.append(request.against(rule, "set it to auto"))
        return mistakes

    def told(self, request: Request, how: str) -> str:
        """The reason: what is computed how, and what is dropped."""
        bias = "learned" if request.encoding.learned else "fixed"
        exact = f"drops at most {request.epsilon:g} of any softmax" if request.epsilon else "exact"
        return f"{bias} bias by distance {how}: {exact}, memory linear in the length"
