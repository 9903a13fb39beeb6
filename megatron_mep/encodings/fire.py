"""FIRE: a small network of the distance as a part of the query's position."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from megatron_mep.encodings.base import PositionBias, Sharable, Weight
from megatron_mep.encodings.kernels import unbounded


class Fire(Sharable, PositionBias):
    """b_h(i, j) = f(psi(i - j) / psi(max(L, i)))_h with psi(x) = log(c x + 1) and learned f, c > 0 and L > 0.

    f has one hidden layer; its weights are drawn as PyTorch draws those of linear layers, from U(-1, 1) for the hidden
    layer and U(-w, w) with w = `width`^(-1/2) for the outer one. The constant of each head that published codes add to
    f is left out: the softmax does not see it. L is a learned multiple, 1 at first, of `threshold`. Softplus keeps c
    and L positive, where published codes take absolute values; 1e-6 is added to the denominator as in these.

    Source: "Functional Interpolation for Relative Positions Improves Long Context Transformers", arXiv:2310.04418,
    eq. 4; sizes, initial values and the constant 1e-6 reconstructed from public re-implementations (TAPE, DAPE).
    """

    name: Literal["fire"] = "fire"
    source: ClassVar[str] = "arXiv:2310.04418, eq. 4 (details reconstructed from public code)"
    formula: ClassVar[str] = "f(psi(i - j) / psi(max(L, i)))_h"

    width: int = Field(32, gt=0)
    """Units of the hidden layer."""
    activation: Literal["relu", "leaky_relu"] = "relu"
    """That of the hidden layer; with `relu`, units that are off for all ratios from 0 to 1 at first never learn."""
    c: float = Field(0.1, gt=0)
    """The initial c."""
    threshold: float = Field(512.0, gt=0)
    """The initial L: queries before it have their distances divided as if they stood there."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        """`inner`, `inner_bias`: `[width]`; `outer [H, width]`; `c`, `multiplier`: `[1]`, unbounded."""

        def uniform(*sizes: int) -> Tensor:
            return 2 * torch.rand(sizes, generator=generator, dtype=torch.float32) - 1

        return {
            "c": Weight(unbounded(torch.tensor([self.c], dtype=torch.float32)), per_head=False),
            "multiplier": Weight(unbounded(torch.ones(1, dtype=torch.float32)), per_head=False),
            "inner": Weight(uniform(self.width), per_head=False),
            "inner_bias": Weight(uniform(self.width), per_head=False),
            "outer": Weight(uniform(num_heads, self.width) / self.width**0.5),
        }

    def of_positions(self, query_position: Tensor, key_position: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, Q, K]`."""
        weights = {name: weight.to(query_position.dtype) for name, weight in weights.items()}
        c = functional.softplus(weights["c"])
        least = self.threshold * functional.softplus(weights["multiplier"])
        distance = (query_position[:, None] - key_position).clamp(min=0)
        longest = torch.maximum(query_position, least)[:, None]
        ratio = torch.log1p(c * distance) / (torch.log1p(c * longest) + 1e-6)
        hidden = torch.addcmul(weights["inner_bias"], ratio[..., None], weights["inner"])
        active = functional.relu(hidden) if self.activation == "relu" else functional.leaky_relu(hidden)
        return torch.einsum("qkw,hw->hqk", active, weights["outer"])
