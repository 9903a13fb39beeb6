"""The parts of a decoder that know nothing of positions, and the weights of an encoding as a module."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class FeedForward(nn.Module):
    """`down(silu(gate x) * up x)`, or `down(gelu(up x))`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        inner, outer, bias = config.intermediate_size, config.hidden_size, config.linear_bias
        self.gate_proj = nn.Linear(outer, inner, bias=bias) if config.hidden_act == "silu" else None
        self.up_proj = nn.Linear(outer, inner, bias=bias)
        self.down_proj = nn.Linear(inner, outer, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., hidden_size]` in and out."""
        up = self.up_proj(hidden)
        inner = functional.gelu(up) if self.gate_proj is None else functional.silu(self.gate_proj(hidden)) * up
        output: Tensor = self.down_proj(inner)
        return output


class EncodingWeights(nn.Module):
    """The weights of an encoding, which stay fp32 whatever the type of the model: slopes rounded are other slopes."""

    def __init__(self, declared: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self._constants = {name for name, weight in declared.items() if not weight["learned"]}
        for name, weight in declared.items():
            value = torch.empty(weight["shape"], dtype=torch.float32)
            # constants too: not every transformers keeps the type of buffers, nor what asks for a gradient
            self.register_parameter(name, nn.Parameter(value, requires_grad=weight["learned"]))

    def forward(self) -> dict[str, Tensor]:
        """The weights by name; no gradient reaches those that are constants."""
        found = self.named_parameters()
        return {name: weight.detach() if name in self._constants else weight for name, weight in found}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "EncodingWeights":
        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        return super()._apply(moved, recurse)


def norm_of(config: Any, size: int) -> nn.Module:
    """The norm that the configuration names."""
    kind = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
    return kind(size, eps=config.norm_epsilon)


def positions(first: int, length: int, like: Tensor) -> Tensor:
    """Consecutive whole numbers in fp32, on the device of another tensor."""
    return torch.arange(first, first + length, dtype=torch.float32, device=like.device)
