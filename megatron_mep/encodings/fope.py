"""Fourier position embedding: pairs that turn by sums of waves instead of a single one."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import LayerSizes, Rotation, Weight
from megatron_mep.encodings.rotary import angles_at, fitting, geometric, too_short
from megatron_mep.encodings.rotate import turn


class Fope(Rotation):
    """Pair m meets C_m(i) = sum_n cos(i w_n) c_hnm for a cosine, and S_m(i) = sum_n sin(i w_n) s_hnm for a sine.

    The waves w_n are RoPE's frequencies of at least 2 pi / L. The coefficients are constant, of each head its own:
    1 on the diagonal and noise by Xavier's rule everywhere, drawn once. Gains of the noise as published: 0.3 for 60M
    parameters, 0.4 for 180M, 0.6 for 1.2B.

    From the released code: at most half of the pairs turn. Where there are more waves than that, ones stand at every
    second, third, ... wave, and the pairs left over have noise alone. Xavier's rule is applied to the coefficients of
    all heads as one tensor, so that the noise has the variance 2 gain^2 / (turning pairs * (waves + heads)). Pairs that
    do not turn have a cosine and a sine of 1 both, which doubles their part of the score; `padding: still`, which is
    ours, leaves them as they are. Without noise, with all pairs and a length that every wave fits in, it is `rope`.

    It is no rotation in the strict sense: lengths change, and scores depend on more than the distance.

    Source: "Fourier Position Embedding: Enhancing Attention's Periodic Extension for Length Generalization",
    arXiv:2412.17739, and its released code.
    """

    name: Literal["fope"] = "fope"
    source: ClassVar[str] = "arXiv:2412.17739 and its released code"
    formula: ClassVar[str] = "turn pair m by cos -> sum_n cos(i w_n) c_hnm, sin -> sum_n sin(i w_n) s_hnm"
    keeps_norms: ClassVar[bool] = False

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths."""
    train_length: int | None = Field(None, gt=0)
    """Tokens that a wave's period must fit in, L; that of `training.seq_length` unless stated."""
    gain: float = Field(0.3, ge=0)
    """How strong the noise of the coefficients is, in units of Xavier's rule."""
    fraction: float = Field(0.5, gt=0, le=1)
    """Which part of the pairs turns at most."""
    padding: Literal["published", "still"] = "published"
    """What pairs do that do not turn: have cosine and sine 1, or stay as they are."""

    @property
    def learned(self) -> bool:
        """Never: the coefficients are drawn, not trained."""
        return False

    @property
    def turns_heads_apart(self) -> bool:
        """Each head has coefficients of its own."""
        return True

    def resolved(self, train_length: int) -> "Fope":
        """Itself, with the training length filled in unless it is stated."""
        return self if self.train_length else self.model_copy(update={"train_length": train_length})

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """A length in which no wave fits, and a fraction too small for a single pair."""
        mistakes = too_short(self.train_length)
        pairs = sizes.head_size // 2
        if pairs and not round(pairs * self.fraction):
            rule = f"must turn at least one of the {pairs} pairs of a head's dimensions"
            mistakes.append(Mistake("fraction", self.fraction, rule, f"set it to {1 / pairs:.2g} or more"))
        return mistakes

    def waves(self, head_size: int) -> Tensor:
        """The frequencies w_n that are summed, the highest first, in fp64."""
        assert self.train_length is not None, "the training length is filled in by `resolved`"
        return fitting(geometric(self.base, head_size), self.train_length)

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """The constant coefficients `sin` and `cos`, `[H, waves, turning pairs]`."""
        num_waves = len(self.waves(sizes.head_size))
        num_turning = min(num_waves, round(sizes.head_size // 2 * self.fraction))
        if not num_turning:
            return {}
        deviation = self.gain * math.sqrt(2 / (num_turning * (num_waves + sizes.num_heads)))
        thinned = _thinned(num_waves, num_turning)
        shape = (sizes.num_heads, num_waves, num_turning)
        return {
            name: Weight(
                thinned + deviation * torch.randn(shape, generator=generator, dtype=torch.float32), learned=False
            )
            for name in ("sin", "cos")
        }

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The angles of the waves before they are summed, `[*position.shape, head_size // 2]`; the others are 0."""
        waves = self.waves(head_size)
        return angles_at(position, functional.pad(waves, (0, head_size // 2 - len(waves))))

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        """Queries or keys `[S, B, H, D]` at `position [S]`, where H is the query heads."""
        pairs = heads.size(-1) // 2
        angle = angles_at(position, self.waves(heads.size(-1)))
        fill = {"cos": 1.0, "sin": 1.0 if self.padding == "published" else 0.0}

        def summed(name: str, wave: Tensor) -> Tensor:
            sums = torch.einsum("...n,hnm->...hm", wave, weights[name].to(wave.dtype))
            padded = functional.pad(sums, (0, pairs - sums.size(-1)), value=fill[name])
            # to meet [S, B, H, D // 2]
            return padded[:, None] if position.dim() == 1 else padded.transpose(0, 1)

        return turn(heads, summed("cos", angle.cos()), summed("sin", angle.sin()))


def _thinned(num_waves: int, num_turning: int) -> Tensor:
    """Ones where pair m has wave m, or every second, third, ... wave where those are so many times too many."""
    coefficients = torch.zeros(num_waves, num_turning, dtype=torch.float32)
    step = math.ceil(num_waves / num_turning)
    chosen = torch.arange(0, num_waves, step)
    coefficients[chosen, torch.arange(len(chosen))] = 1
    return coefficients
