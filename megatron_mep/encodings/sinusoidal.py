"""Sines and cosines of the position, added to the embeddings."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.placement import Embedded
from megatron_mep.encodings.rotary import angles_at


class Sinusoidal(Embedded, Encoding):
    """Dimensions 2m and 2m + 1 of the C in a token's embedding take on sin and cos of the angle i base^(-2m/C).

    Sines and cosines alternate as in the paper; the authors' code puts all sines before all cosines, which is the same
    model with its dimensions in another order, and divides the exponent by C/2 - 1 in place of C/2.

    Source: "Attention Is All You Need", arXiv:1706.03762, section 3.5.
    """

    name: Literal["sinusoidal"] = "sinusoidal"
    source: ClassVar[str] = "arXiv:1706.03762, section 3.5"
    formula: ClassVar[str] = "add sin and cos of i base^(-2m/C)"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths."""
    amplitude: float = Field(1.0, gt=0)
    """Multiplies the waves. The paper multiplies embeddings of variance 1/C by sqrt(C), up to the size of its waves."""

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The waves `[*position.shape, hidden_size]`; of an odd size the last cosine is left out."""
        exponent = torch.arange(0, hidden_size, 2, dtype=torch.float64) / hidden_size
        angle = angles_at(position, self.base**-exponent)
        waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return self.amplitude * waves[..., :hidden_size]
