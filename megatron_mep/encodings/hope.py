"""Rotary position embedding whose pairs turn only if training sees them turn once around."""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.rotary import Rotary, fitting, geometric, too_short


class Hope(Rotary):
    """Pair m turns by the angle position * base^(-2 m / D) if its frequency is at least 2 pi / L, or else not at all.

    L is the training length: beyond it no pair meets an angle that training has not shown. The slower pairs are left
    without positions, as in `nope`. That they stay as they are, rather than being replaced by learned vectors, is what
    the abstract says; the threshold is that of the code of others, for the paper's body was not available to us.

    Source: "HoPE: A Novel Positional Encoding Without Long-Term Decay for Enhanced Context Awareness and
    Extrapolation", arXiv:2410.21216. Others of that name are not meant.
    """

    name: Literal["hope"] = "hope"
    source: ClassVar[str] = "arXiv:2410.21216 (threshold reconstructed)"
    formula: ClassVar[str] = "turn pair m by i base^(-2m/D) where that is >= 2 pi i / L"

    train_length: int | None = Field(None, gt=0)
    """Tokens that a period must fit in, L; that of `training.seq_length` unless stated."""

    def resolved(self, train_length: int) -> "Hope":
        """Itself, with the training length filled in unless it is stated."""
        return self if self.train_length else self.model_copy(update={"train_length": train_length})

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """The base's, and a length in which no period fits."""
        return [*super().mistakes(sizes), *too_short(self.train_length)]

    def frequencies(self, head_size: int) -> Tensor:
        """Radians by which each pair turns from one position to the next, `[head_size // 2]` in fp64."""
        assert self.train_length is not None, "the training length is filled in by `resolved`"
        turning = fitting(geometric(self.base, head_size), self.train_length)
        return functional.pad(turning, (0, head_size // 2 - len(turning)))
