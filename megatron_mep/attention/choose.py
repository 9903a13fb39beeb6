"""Which backend computes attention under an encoding, or why none does."""

from typing import Literal

import torch

from megatron_mep.attention.backend import Backend, Request, Row
from megatron_mep.attention.rows import ROWS
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import Encoding

BackendName = Literal["auto", "reference", "compiled", "toeplitz", "triton", "flex"]


def choose(
    encoding: Encoding,
    *,
    device_type: str,
    dtype: torch.dtype,
    head_size: int,
    training: bool,
    dropout: float,
    epsilon: float = 0.0,
    backend: BackendName = "auto",
) -> Backend:
    """The backend for an encoding; a `ConfigError` names the way out where none serves.

    Args:
        encoding: What acts in the layer.
        device_type: `cpu` or `cuda`.
        dtype: Of queries, keys and values.
        head_size: D.
        training: Whether dropout acts, and gradients are computed.
        dropout: `model.attention_dropout`.
        epsilon: `model.attention_epsilon`.
        backend: `model.attention_backend`. A name other than `auto` is refused where that backend does not serve, and
            stands aside for encodings of another kind, such as those without a bias.
    """
    acting = dropout if training else 0.0
    request = Request(encoding, device_type, dtype, head_size, training, acting, epsilon, backend)
    knowing = sorted((row for row in ROWS if row.knows(encoding)), key=lambda row: row.rank(request))
    named = [row for row in knowing if row.name == backend]
    rows = named or [row for row in knowing if row.automatic]
    against = {row: row.mistakes(request) for row in rows}
    for row, mistakes in against.items():
        if not mistakes:
            return Backend(
                row.name,
                row.reason(request),
                row.attend(request),
                row.counts_work(request),
                row.takes_bound(request),
                row.step(request),
            )
    raise ConfigError(dict.fromkeys(_told(against, request)))


def _told(against: dict[Row, list[Mistake]], request: Request) -> list[Mistake]:
    """The mistakes of the backends for this device, where there are any; of all others where not."""
    here = [mistakes for row, mistakes in against.items() if row.computes_on in (None, request.device_type)]
    return [mistake for mistakes in here or against.values() for mistake in mistakes]
