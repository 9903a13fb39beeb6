"""HiRoPE: slow pairs of a rotation turn by segments in place of tokens."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import LayerSizes, PairScores
from megatron_mep.encodings.products import scores
from megatron_mep.encodings.rotary import angles_at, geometric, odd_heads
from megatron_mep.encodings.rotate import turn
from megatron_mep.encodings.segments import Segmented


class Hirope(Segmented, PairScores):
    """Scores of RoPE, whose slow pairs turn by the number of the segment where the distance reaches `window`.

    Pair m turns by p base^(-2m/D). Nearer than the window, p is the token's index for all pairs. From there on it is
    the token's index for the `split` of fastest pairs, and the segment's number for all others, which would otherwise
    turn to angles that training has not shown. Meant by its authors for models trained under RoPE, and used without
    training; a model may be trained under it too.

    The paper's segments are functions and classes of source code, found by a parser, and 128 tokens each in natural
    language. Here they are that, or lines. Reconstructed, since the paper's body was not available to us: that half of
    the pairs are fast, and that scores pass from the one reckoning to the other at the window without a shift.

    Source: "HiRoPE: Length Extrapolation for Code Models Using Hierarchical Position", arXiv:2403.19115
    (reconstructed).
    """

    name: Literal["hirope"] = "hirope"
    source: ClassVar[str] = "arXiv:2403.19115 (reconstructed)"
    formula: ClassVar[str] = "turn fast pairs by token, slow ones by segment beyond a window"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths."""
    split: float = Field(0.5, ge=0, le=1)
    """Which part of the pairs, the fastest ones, always turns by the token's index; rounded to whole pairs."""
    window: int = Field(512, ge=0)
    """Distance from which slow pairs turn by the segment's number."""
    segments_by: Literal["length", "line"] = "length"
    """What a segment is: so many tokens, or a line of text, which suits source code."""
    segment_length: PositiveInt = 128
    """Tokens of a segment by length."""

    @model_validator(mode="after")
    def _ends_are_of_lines(self) -> Self:
        if self.ends is not None and self.segments_by == "length":
            raise ValueError("segments by length end with no token; leave ends out, or set segments_by to line")
        return self

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """The base's, and heads of odd size."""
        return [*super().mistakes(sizes), *odd_heads(self.name, sizes)]

    def ends_with(self, spelling: bytes) -> bool:
        """Lines end with their break."""
        return b"\n" in spelling

    def reading(self, spellings: Sequence[bytes]) -> Self:
        """Itself, with the tokens that end a line filled in where segments are lines."""
        return super().reading(spellings) if self.segments_by == "line" else self

    def places(self, tokens: Tensor, training: bool) -> Tensor:  # noqa: ARG002
        """The token's index and the number of its segment, `[2, B, S]`."""
        index = torch.arange(tokens.size(-1), device=tokens.device).expand_as(tokens)
        number = index // self.segment_length if self.segments_by == "length" else self.segments(tokens)[1]
        return torch.stack((index, number))

    def of_pairs(
        self,
        query: Tensor,
        key: Tensor,
        query_position: Tensor,
        key_position: Tensor,
        **weights: Tensor,  # noqa: ARG002
    ) -> Tensor:
        """The scores by tokens near by and by segments further off, `[B, H, Q, K]`."""
        near, far = (
            scores(self._turned(query, query_position, hierarchical), self._turned(key, key_position, hierarchical))
            for hierarchical in (False, True)
        )
        distance = query_position[0, :, :, None] - key_position[0, :, None]  # [B, Q, K]
        return torch.where((distance < self.window)[:, None], near, far)

    def _turned(self, heads: Tensor, position: Tensor, hierarchical: bool) -> Tensor:
        """Queries or keys `[B, H, S, D]`, turned by the indices of tokens, or slow pairs by the numbers of segments."""
        frequency = geometric(self.base, heads.size(-1))
        by_token, by_segment = angles_at(position, frequency)
        fast = torch.arange(len(frequency), device=heads.device) < round(self.split * len(frequency))
        angle = torch.where(fast, by_token, by_segment) if hierarchical else by_token
        return turn(heads, angle.cos()[:, None], angle.sin()[:, None])
