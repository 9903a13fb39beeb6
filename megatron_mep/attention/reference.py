"""Dense causal attention: the specification that every backend in this package must meet."""

import torch
from torch import Tensor

from megatron_mep.config.errors import ConfigError, Mistake

MAX_DENSE_POSITIONS = 4096


def reference_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, scale: float) -> Tensor:
    """Causal softmax attention with `bias` added to the scaled scores, in the inputs' dtype.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions: query i sits at position K - Q + i.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        bias: `[H, Q, K]`, or `None` for none.
        scale: Factor of the scores, usually D ** -0.5.

    Returns:
        `[B, H, Q, D]`.
    """
    group_size = query.size(1) // key.size(1)
    key, value = (tensor.repeat_interleave(group_size, dim=1) for tensor in (key, value))
    scores = scale * query @ key.mT  # [B, H, Q, K]
    if bias is not None:
        scores = scores + bias
    future = distances(query.size(2), key.size(2), query.device) < 0
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1).to(value.dtype) @ value


def distances(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    """Query position - key position, `[Q, K]`, negative where the key is in the future."""
    positions = torch.arange(num_keys, device=device)
    return positions[num_keys - num_queries :, None] - positions


def dense_bias(bias: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """A bias by distance `[H, N >= K]` as a matrix `[H, Q, K]`; where the key is in the future, that of distance 0."""
    return bias[:, distances(num_queries, num_keys, bias.device).clamp(min=0)]


def dense_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, scale: float) -> Tensor:
    """`reference_attention` called as a backend is: with `bias [H, N >= K]` by distance, and a limit on its memory."""
    num_samples, num_heads, num_queries, _ = query.shape
    num_keys = key.size(2)
    if num_keys > MAX_DENSE_POSITIONS:
        gib = num_samples * num_heads * num_queries * num_keys * torch.float32.itemsize / 2**30
        raise ConfigError(
            Mistake(
                "model.attention_backend",
                "reference",
                f"serves up to {MAX_DENSE_POSITIONS} positions, not {num_keys}, where a copy of the scores "
                f"{num_samples} x {num_heads} x {num_queries} x {num_keys} takes {gib:.1f} GiB",
                f"set it to auto, or use at most {MAX_DENSE_POSITIONS} positions",
            )
        )
    if bias is not None:
        bias = dense_bias(bias, num_queries, num_keys)
    return reference_attention(query, key, value, bias, scale=scale)
