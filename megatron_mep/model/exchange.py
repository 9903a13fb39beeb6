"""What context ranks allow a model, and which backend then computes its attention."""

from collections.abc import Iterator

import torch

from megatron_mep.attention.backend import Backend
from megatron_mep.attention.choose import choose
from megatron_mep.config.errors import Mistake
from megatron_mep.config.nearest import divisors, nearest
from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, PairScores, PositionBias, ScoreMix
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.ring_attention import ring_attention
from megatron_mep.parallel.config import ParallelConfig


def exchange_mistakes(model: ModelConfig, parallel: ParallelConfig) -> Iterator[Mistake]:
    """What stands against sharing the model's sequences by `parallel.context_exchange`."""
    if parallel.context == 1:
        return
    match parallel.context_exchange:
        case "ulysses":
            yield from _ulysses_mistakes(model, parallel)
        case "ring":
            yield from _ring_mistakes(model)


def attention_backend(
    model: ModelConfig,
    encoding: Encoding,
    parallel: ParallelConfig,
    dtype: torch.dtype,
    training: bool,
    device_type: str | None = None,
) -> Backend:
    """The backend of the layers in which `encoding` acts, on a `cpu` or `cuda`: this machine's device, if not told."""
    if parallel.context > 1 and parallel.context_exchange == "ring":
        kinds = {DistanceBias: "distance", PositionBias: "positions"}
        by = next((told for kind, told in kinds.items() if isinstance(encoding, kind)), None)
        bias = f"{encoding.name}'s bias by {by}" if by else "no bias"
        reason = f"{bias}: exact, keys and values travel around, memory linear in a rank's part of the sequence"
        return Backend("ring", reason, ring_attention)
    return choose(
        encoding,
        device_type=device_type or ("cuda" if torch.cuda.is_available() else "cpu"),
        dtype=dtype,
        head_size=model.head_size,
        training=training,
        dropout=model.attention_dropout,
        epsilon=model.attention_epsilon,
        backend=model.attention_backend,
    )


def _ulysses_mistakes(model: ModelConfig, parallel: ParallelConfig) -> Iterator[Mistake]:
    encoding, context = model.encoding, parallel.context
    heads, odd = divmod(model.num_attention_heads, parallel.tensor)
    if isinstance(encoding, ScoreMix) and encoding.across_heads:
        yield _against("ulysses", f"gives a rank some of the heads, and {encoding.name} mixes the scores of all heads")
    # what does not divide over the tensor ranks is told by its own rule
    elif not odd and heads % context:
        yield Mistake("parallel.context", context, f"must divide the {heads} heads of a tensor rank under ulysses",
                      f"set parallel.context to {nearest(context, divisors(heads))}, or parallel.context_exchange to "
                      "all_gather")  # fmt: skip


def _ring_mistakes(model: ModelConfig) -> Iterator[Mistake]:
    encoding = model.encoding
    if isinstance(encoding, KeyBias | ScoreMix | PairScores):
        yield _against("ring", f"serves rotations and biases by distance or positions, and {encoding.name} reads what "
                       "a query or a key holds")  # fmt: skip
    if model.attention_epsilon:
        yield Mistake("model.attention_epsilon", model.attention_epsilon, "must be 0 under a ring, which drops no keys",
                      "set parallel.context_exchange to all_gather, or it to 0")  # fmt: skip
    if model.attention_dropout:
        yield Mistake("model.attention_dropout", model.attention_dropout, "must be 0 under a ring, which drops no "
                      "weights", "set parallel.context_exchange to all_gather, or it to 0")  # fmt: skip
    if model.attention_backend != "auto":
        yield Mistake("model.attention_backend", model.attention_backend, "must be auto under a ring, which computes "
                      "by itself", "set parallel.context_exchange to all_gather, or it to auto")  # fmt: skip


def _against(exchange: str, rule: str) -> Mistake:
    return Mistake("parallel.context_exchange", exchange, rule, "set parallel.context_exchange to all_gather")
