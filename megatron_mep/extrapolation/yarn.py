"""Interpolation of the pairs that do not turn often enough within the training length, alone and with a temperature."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.rotary import Rotary
from megatron_mep.extrapolation.frequencies import FixedFrequencyTrick, pair_numbers


class ByParts(FixedFrequencyTrick):
    """The frequency f_m of pair m becomes g_m f_m + (1 - g_m) f_m / s, g_m from 1 to 0 the less the pair turns."""

    name: str

    factor: float = Field(ge=1)
    """How many times the training length is read, s."""
    beta_fast: float = Field(32.0, gt=0)
    """Turns within the training length from which on a pair keeps its frequency."""
    beta_slow: float = Field(1.0, gt=0)
    """Turns up to which its frequency is divided by s."""
    ramp: Literal["pairs", "turns"] = "pairs"
    """What the share that is kept is linear in: the number of the pair, or how often it turns."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            rule = f"beta_fast={self.beta_fast:g} must exceed beta_slow={self.beta_slow:g}"
            raise ValueError(f"{rule}; the published ones are 32 and 1")
        return self

    def share(self, encoding: Rotary, head_size: int, train_length: int) -> Tensor:
        """`g_m + (1 - g_m) / s`."""
        kept = self._kept(encoding, head_size, train_length)
        return kept + (1 - kept) / self.factor

    def _kept(self, encoding: Rotary, head_size: int, train_length: int) -> Tensor:
        """`g_m`, `[head_size // 2]` in fp64."""
        if self.ramp == "turns":
            turns = train_length / (2 * torch.pi) * encoding.frequencies(head_size)
            return ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)
        size = encoding.series_size(head_size)

        def pair_of(turns: float) -> float:
            return size / 2 * math.log(train_length / (2 * math.pi * turns)) / math.log(encoding.base)

        first = max(math.floor(pair_of(self.beta_fast)), 0)
        last = min(math.ceil(pair_of(self.beta_slow)), size - 1)
        # a ramp of no length is a step, as in the released code
        return 1 - ((pair_numbers(head_size) - first) / max(last - first, 1e-3)).clamp(0, 1)


class NtkByParts(ByParts):
    """Frequencies are kept where a pair turns often within the training length L, and divided by s where it does not.

    The frequency f_m becomes g_m f_m + (1 - g_m) f_m / s. With `ramp: pairs`, g falls from 1 to 0 linearly in m, from
    floor(m(beta_fast)) to ceil(m(beta_slow)), where m(r) = D/2 log_b(L / (2 pi r)) is the pair that turns r times: so
    the released code. With `ramp: turns`, g is linear in r_m = L f_m / (2 pi), from 0 at beta_slow to 1 at beta_fast:
    so the paper's definition, reconstructed.

    Source: the NTK-by-parts interpolation of "YaRN: Efficient Context Window Extension of Large Language Models",
    arXiv:2309.00071, and its released code.
    """

    name: Literal["ntk_by_parts"] = "ntk_by_parts"
    source: ClassVar[str] = "arXiv:2309.00071, NTK-by-parts"
    formula: ClassVar[str] = "f_m -> g_m f_m + (1 - g_m) f_m/s"


class Yarn(ByParts):
    """NTK-by-parts, and scores multiplied by (0.1 ln s + 1)^2.

    The released code multiplies queries and keys by 0.1 ln s + 1, with their cosines and sines; where only a part of a
    head turns, that leaves out the rest of it, which the paper's temperature does not, nor does this.

    Source: "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071, and its released
    code.
    """

    name: Literal["yarn"] = "yarn"
    source: ClassVar[str] = "arXiv:2309.00071"
    formula: ClassVar[str] = "ntk_by_parts, scores (0.1 ln s + 1)^2"

    temperature: float = Field(0.1, ge=0)
    """How fast the scores grow with ln s; 0 leaves them."""

    def methods(self, encoding: Rotary, train_length: int) -> dict[str, Callable[..., Any]]:
        """The frequencies, and the factor of the scores."""
        factor = (self.temperature * math.log(self.factor) + 1) ** 2

        def query_factor(_: Encoding, position: Tensor) -> Tensor:
            before = encoding.query_factor(position)
            return factor * (torch.ones_like(position) if before is None else before)

        return super().methods(encoding, train_length) | {"query_factor": query_factor}
