"""Which backend computes attention under an encoding, or why none does."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from megatron_mep.attention.plain import plain_attention
from megatron_mep.attention.reference import MAX_DENSE_POSITIONS, dense_attention
from megatron_mep.attention.toeplitz import toeplitz_attention
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import DistanceBias, Encoding

Attend = Callable[..., Tensor]
"""`attend(query [B, H, Q, D], key [B, G, K, D], value, bias [H, N >= K] by distance or None, scale=...)`."""


@dataclass(frozen=True)
class Backend:
    """A way to compute attention that serves all that was asked for."""

    name: str
    reason: str
    """Why it was chosen and what it costs, for the line at start-up."""
    attend: Attend


@dataclass(frozen=True)
class _Request:
    encoding: Encoding
    device_type: str
    dtype: torch.dtype
    dropout: float
    """What acts: 0 outside training."""


class _Row(ABC):
    """One backend: what it is asked for, when it refuses, and how it is called."""

    name: ClassVar[str]
    automatic: ClassVar[bool] = True
    """Whether it may be chosen without being named."""

    @abstractmethod
    def knows(self, encoding: Encoding) -> bool:
        """Whether it can compute this kind of encoding somewhere."""

    @abstractmethod
    def mistakes(self, request: _Request) -> list[Mistake]:
        """What stands against it; empty where it serves."""

    @abstractmethod
    def reason(self, request: _Request) -> str:
        """Why it serves."""

    @abstractmethod
    def attend(self, request: _Request) -> Attend:
        """The function to call."""


class _Plain(_Row):
    name = "plain"

    def knows(self, encoding: Encoding) -> bool:
        return not isinstance(encoding, DistanceBias)

    def mistakes(self, request: _Request) -> list[Mistake]:  # noqa: ARG002
        return []

    def reason(self, request: _Request) -> str:
        why = f"{request.encoding.name} adds nothing to the scores: torch's scaled dot product attention"
        if request.dropout and request.device_type == "cpu":
            return f"{why}; for dropout torch holds all scores on a CPU"
        return why

    def attend(self, request: _Request) -> Attend:
        return partial(plain_attention, dropout=request.dropout)


class _Toeplitz(_Row):
    name = "toeplitz"

    def knows(self, encoding: Encoding) -> bool:
        return isinstance(encoding, DistanceBias)

    def mistakes(self, request: _Request) -> list[Mistake]:
        mistakes = _no_dropout(request, self.name)
        if request.device_type != "cpu":
            mistakes.append(
                Mistake(
                    "model.attention_backend",
                    "auto",
                    f"must be reference on {request.device_type} under {request.encoding.name}, whose bias by distance "
                    "nothing else serves there",
                    f"set it to reference (dense, up to {MAX_DENSE_POSITIONS} positions), run on a CPU, "
                    "or choose a model.encoding without a bias",
                )
            )
        return mistakes

    def reason(self, request: _Request) -> str:
        bias = "learned" if request.encoding.learned else "fixed"
        precision = "" if request.dtype.itemsize >= torch.float32.itemsize else ", backward pass in fp32"
        return f"{bias} bias by distance on a CPU: exact, memory linear in the length{precision}"

    def attend(self, request: _Request) -> Attend:  # noqa: ARG002
        return toeplitz_attention


class _Reference(_Row):
    name = "reference"
    automatic = False

    def knows(self, encoding: Encoding) -> bool:  # noqa: ARG002
        return True

    def mistakes(self, request: _Request) -> list[Mistake]:
        return _no_dropout(request, self.name)

    def reason(self, request: _Request) -> str:  # noqa: ARG002
        return f"asked for: dense, memory quadratic in the length, up to {MAX_DENSE_POSITIONS} positions"

    def attend(self, request: _Request) -> Attend:  # noqa: ARG002
        return dense_attention


_ROWS: tuple[_Row, ...] = (_Plain(), _Toeplitz(), _Reference())
"""In order of preference."""


def choose(
    encoding: Encoding,
    *,
    device_type: str,
    dtype: torch.dtype,
    training: bool,
    dropout: float,
    backend: Literal["auto", "reference"] = "auto",
) -> Backend:
    """The backend for an encoding; a `ConfigError` names the way out where none serves.

    Args:
        encoding: What acts in the layer.
        device_type: `cpu` or `cuda`.
        dtype: Of queries, keys and values.
        training: Whether dropout acts.
        dropout: `model.attention_dropout`.
        backend: `model.attention_backend`: `auto`, or the one that is never chosen unasked.
    """
    request = _Request(encoding, device_type, dtype, dropout if training else 0.0)
    rows = [row for row in _ROWS if (row.automatic if backend == "auto" else row.name == backend)]
    mistakes: list[Mistake] = []
    for row in rows:
        if not row.knows(encoding):
            continue
        against = row.mistakes(request)
        if not against:
            return Backend(row.name, row.reason(request), row.attend(request))
        mistakes += against
    raise ConfigError(dict.fromkeys(mistakes))


def _no_dropout(request: _Request, name: str) -> list[Mistake]:
    if not request.dropout:
        return []
    rule = f"must be 0 in training under {request.encoding.name}: {name} attention drops no weights"
    return [Mistake("model.attention_dropout", request.dropout, rule, "set it to 0, or use model.hidden_dropout")]
