"""BiPE: the place in a segment added to the embedding, the segment's number in attention."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes, PairScores, Rotation, Weight
from megatron_mep.encodings.learned_absolute import random_table, rows_at
from megatron_mep.encodings.placement import Embedded
from megatron_mep.encodings.products import scores
from megatron_mep.encodings.rotary import angles_at, geometric
from megatron_mep.encodings.rotate import rotate
from megatron_mep.encodings.segments import Segmented
from megatron_mep.encodings.slopes import alibi_slopes


class Bipe(Segmented, Embedded):
    """What both kinds have in common: segments, and a learned vector for each place in a segment.

    Its tracks are the place in the segment and the segment's number.
    """

    num_positions: PositiveInt = 1024
    """Rows of the table of vectors; tokens further on in a segment take its last row."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the vectors' initial values."""

    def ends_with(self, spelling: bytes) -> bool:
        """Sentences end with a full stop, and lines with their break."""
        return spelling.endswith(b".") or b"\n" in spelling

    def places(self, tokens: Tensor, training: bool) -> Tensor:  # noqa: ARG002
        """The place in the segment and the segment's number, `[2, B, S]`."""
        return torch.stack(self.segments(tokens))

    def embedding_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """The vectors, `table [num_positions, hidden_size]`."""
        return {"table": random_table(self.num_positions, sizes.hidden_size, self.init_std, generator)}

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The vectors `[B, S, hidden_size]` at the places in segments."""
        return rows_at(position[0], weights["table"])


class BipeRope(Bipe, Rotation):
    """A learned vector for the place in a segment is added, and pair m turns by s base^(-2m/D), s the segment's number.

    A segment ends with a token whose text ends in a full stop or has a line break; the authors' code names two tokens
    of Llama's vocabulary, a full stop and a line break, which `ends` can state. As there, the token that ends a segment
    belongs to it. Initial values N(0, 0.02^2). Their option to multiply queries by log(s + 1) / log(1024), off in their
    configurations, is left out: it would void all scores of the first segment.

    Source: "Two Stones Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation", arXiv:2401.16421,
    section 3, and the authors' code.
    """

    name: Literal["bipe_rope"] = "bipe_rope"
    source: ClassVar[str] = "arXiv:2401.16421, section 3"
    formula: ClassVar[str] = "add e_(place in segment), turn pair m by segment base^(-2m/D)"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths, counted in segments."""

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The angles `[*position.shape, head_size // 2]` of segments' numbers."""
        return angles_at(position, geometric(self.base, head_size))

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """Queries or keys `[S, B, H, D]`, turned by the numbers of their segments."""
        return rotate(heads, self.angles(position[1], heads.size(-1)))


class BipeAlibi(Bipe, PairScores):
    """A learned vector for the place in a segment is added; the score gets -96 m_h (s_i - s_j), s a segment's number.

    Segments are those of `bipe_rope`, the slopes m_h ALiBi's. The authors' code adds 96 m_h s_j, the same but for a
    constant of the row, which the softmax drops.

    Source: "Two Stones Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation", arXiv:2401.16421,
    section 3, and the authors' code, which the factor 96 is from.
    """

    name: Literal["bipe_alibi"] = "bipe_alibi"
    source: ClassVar[str] = "arXiv:2401.16421, section 3"
    formula: ClassVar[str] = "add e_(place in segment), -96 m_h (segment of i - segment of j)"

    factor: float = Field(96.0, gt=0)
    """Multiplies ALiBi's slopes, for segments are longer than tokens."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """The constant slopes, `slope [H]`."""
        return {"slope": Weight(self.factor * alibi_slopes(num_heads), learned=False)}

    def of_pairs(
        self, query: Tensor, key: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        """The scores less the slope times the segments between, `[B, H, Q, K]`."""
        between = (query_position[1, :, :, None] - key_position[1, :, None]).clamp(min=0)  # [B, Q, K]
        slope = weights["slope"].to(query.dtype)[:, None, None]
        return scores(query, key) - slope * between[:, None]
