"""Another base of a rotation's frequencies, and the dimension up to which training has seen whole periods."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.rotary import Rotary
from megatron_mep.extrapolation.base import Remarked
from megatron_mep.extrapolation.frequencies import FixedFrequencyTrick, pair_numbers


class Base(FixedFrequencyTrick):
    """The frequencies are those of another base.

    The line at start-up tells the critical dimension 2 ceil(D/2 log_b(L / 2 pi)), up to which dimensions turn a whole
    period within the training length L under the base b of training (92 of LLaMA 2's 128 at 4096 tokens), and its
    period 2 pi base^(critical/D) under the new base: how far a model is to extrapolate that was tuned with that base,
    where it is large. A trick tunes nothing.

    Source: "Scaling Laws of RoPE-based Extrapolation", arXiv:2310.05209, as its released code documents it.
    """

    name: Literal["base"] = "base"
    source: ClassVar[str] = "arXiv:2310.05209"
    formula: ClassVar[str] = "turn pair m by i base^(-2m/D)"
    also: ClassVar[tuple[type[Any], ...]] = (Remarked,)

    base: float = Field(gt=1)
    """The new base."""

    def methods(self, encoding: Rotary, train_length: int) -> dict[str, Callable[..., Any]]:
        """The frequencies, and what is told of them."""

        def remark(_: Encoding, head_size: int) -> str:
            size = encoding.series_size(head_size)
            critical = critical_dimension(encoding.base, size, train_length)
            period = 2 * math.pi * self.base ** (critical / size)
            return f"base {self.base:g}, critical dimension {critical} of {size}, of period {period:.0f}"

        return super().methods(encoding, train_length) | {"remark": remark}

    def share(self, encoding: Rotary, head_size: int, train_length: int) -> Tensor:  # noqa: ARG002
        """`(new / old)^(-2m / D)`."""
        exponent = pair_numbers(head_size) * (-2 / max(encoding.series_size(head_size), 1))
        return torch.tensor(self.base / encoding.base, dtype=torch.float64) ** exponent


def critical_dimension(base: float, size: int, train_length: int) -> int:
    """How many of `size` dimensions turn a whole period within the training length, at most all of them."""
    share = math.log(train_length / (2 * math.pi)) / math.log(base)
    return min(size, max(0, 2 * math.ceil(size / 2 * share)))
