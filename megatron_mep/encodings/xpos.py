"""Extrapolatable position embedding: a rotation whose pairs also fade with the distance."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings import products
from megatron_mep.encodings.base import LayerSizes, PairScores
from megatron_mep.encodings.rotary import angles_at, geometric, odd_heads
from megatron_mep.encodings.rotate import turn


class Xpos(PairScores):
    """Pair m turns as in RoPE, and its part of the score is multiplied by zeta_m^((i - j) / s).

    zeta_m = (2 m / D + gamma) / (1 + gamma) with gamma = 0.4 and s = 512: the fastest pairs fade first. Where gamma is
    huge every zeta is 1, and this is `rope`.

    The paper's code multiplies queries by zeta^((i - c) / s) and keys by zeta^((c - j) / s) with c the middle of the
    sequence, which leaves fp32 at some 70 thousand positions. Here c is the last position of the queries at hand: the
    factors of the keys that they see are then 1 at most, and where one is too small for fp32 its score is 0. Blockwise
    causal attention, which the paper evaluates with, is a trick of evaluation and not of this encoding.

    Source: "A Length-Extrapolatable Transformer", arXiv:2212.10554, and its released code.
    """

    name: Literal["xpos"] = "xpos"
    source: ClassVar[str] = "arXiv:2212.10554 and its released code"
    formula: ClassVar[str] = "turn pair m by i base^(-2m/D), times zeta_m^(d/s)"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths."""
    gamma: float = Field(0.4, gt=0)
    """How far zeta stays off 0: zeta_0 = gamma / (1 + gamma) is the smallest."""
    scale_base: float = Field(512.0, gt=0)
    """The distance at which pair m has faded to zeta_m: s."""

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """The base's, and heads of odd size."""
        return [*super().mistakes(sizes), *odd_heads(self.name, sizes)]

    def of_pairs(
        self,
        query: Tensor,
        key: Tensor,
        query_position: Tensor,
        key_position: Tensor,
        **weights: Tensor,  # noqa: ARG002
    ) -> Tensor:
        """The scores `[B, H, Q, K]`."""
        last = query_position.max()
        if len(query_position) > 1 and float(last - query_position.min()) > self._reach:
            halves = zip(query.tensor_split(2, dim=2), query_position.tensor_split(2), strict=True)
            return torch.cat([self.of_pairs(half, key, at, key_position) for half, at in halves], dim=2)
        faded_query = self._faded(query, query_position, query_position - last)
        # keys further on are in the future of all these queries
        faded_key = self._faded(key, key_position, (last - key_position).clamp(min=0))
        return products.scores(faded_query, faded_key)

    @property
    def _reach(self) -> float:
        """Positions that a block of queries may span: their factors are e^8 at most."""
        return 8 * self.scale_base / math.log1p(1 / self.gamma)

    def _faded(self, heads: Tensor, position: Tensor, distance: Tensor) -> Tensor:
        """Heads `[B, H, S, D]` turned by their positions and multiplied by zeta^(distance / s)."""
        size = heads.size(-1)
        angle = angles_at(position, geometric(self.base, size))
        share = torch.arange(size // 2, dtype=torch.float64, device=heads.device) * (2 / size)
        rate = torch.log((share + self.gamma) / (1 + self.gamma)) / self.scale_base
        factor = (distance.double()[:, None] * rate).exp().to(angle.dtype)
        return turn(heads, angle.cos() * factor, angle.sin() * factor)
