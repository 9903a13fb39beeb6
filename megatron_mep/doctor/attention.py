"""Which attention backends work here for which encodings: each is run, forward and backward, in one small model."""

from collections.abc import Iterator

import torch
from torch import nn

from megatron_mep.attention.choose import choose
from megatron_mep.attention.native import why_absent
from megatron_mep.attention.rows import ROWS
from megatron_mep.config.errors import ConfigError, UserError
from megatron_mep.doctor.finding import Finding, ok, red, warn
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.base import DistanceBias, Encoding
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import backends_in_force
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import initialize, shutdown

LENGTH, VOCABULARY = 32, 8
HEADS, HEAD_SIZE = 12, 16


def attention() -> Iterator[Finding]:
    """A line for each backend of this device, with the encodings that it computed."""
    absent = why_absent() if not torch.cuda.is_available() else None
    if absent:
        yield warn(
            "compiled attention", f"cannot be had: {absent}", "see to the C++ compiler; toeplitz serves meanwhile"
        )
    groups = initialize(Environment(), ParallelConfig())
    try:
        worked: dict[str, list[str]] = {}
        for encoding in map(_completed, BUILT_IN):
            for name in backends(encoding, groups.device):
                why = failure(encoding, name, groups.device)
                if why is None:
                    worked.setdefault(name, []).append(encoding.name)
                else:
                    remedy = "choose another model.attention_backend, and report this"
                    yield red(f"{name} attention", f"fails for {encoding.name}: {why}", remedy)
    finally:
        shutdown()
    for name, encodings in worked.items():
        yield ok(f"{name} attention", f"computes {', '.join(encodings)} on {groups.device.type}")


def backends(encoding: Encoding, device: torch.device) -> list[str]:
    """Those that say that they serve an encoding on a device."""
    automatic = _chosen(encoding, device, "auto")
    if not isinstance(encoding, DistanceBias):
        return [automatic] if automatic else []
    named = (row.name for row in ROWS if row.knows(encoding) and row.name not in ("plain", "chunked"))
    return [name for name in named if _chosen(encoding, device, name) == name]


def failure(encoding: Encoding, backend: str, device: torch.device) -> str | None:
    """What goes wrong in one step of a small model; `None` where nothing does."""
    named = backend if isinstance(encoding, DistanceBias) else "auto"
    model = ModelConfig(
        num_layers=2,
        hidden_size=HEADS * HEAD_SIZE,
        num_attention_heads=HEADS,
        encoding=encoding,
        attention_backend=named,
    )
    try:
        built = build_model(model, ParallelConfig(), VOCABULARY, seed=0).to(device)
        loss = _loss(built, device)
        loss.backward()
    except (UserError, RuntimeError, ValueError, ImportError, OSError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    if (computing := backends_in_force(built)) != backend:
        return f"{computing} computes it"
    gradients = [weight.grad for weight in built.parameters() if weight.grad is not None]
    finite = bool(loss.isfinite()) and all(bool(gradient.isfinite().all()) for gradient in gradients)
    return None if finite else "the loss or its gradient is not finite"


def _loss(model: nn.Module, device: torch.device) -> torch.Tensor:
    tokens = torch.arange(LENGTH + 1, device=device)[None] % VOCABULARY
    losses: torch.Tensor = model(tokens[:, :-1], None, None, labels=tokens[:, 1:])
    return losses.mean()


def _chosen(encoding: Encoding, device: torch.device, backend: str) -> str | None:
    try:
        return choose(
            encoding,
            device_type=device.type,
            dtype=torch.float32,
            head_size=HEAD_SIZE,
            training=True,
            dropout=0.0,
            backend=backend,  # type: ignore[arg-type]
        ).name
    except ConfigError:
        return None


def _completed(kind: type[Encoding]) -> Encoding:
    name = str(kind.model_fields["name"].default)
    return kind(name=name).resolved(LENGTH).reading([b"a", b".\n"] * (VOCABULARY // 2))
