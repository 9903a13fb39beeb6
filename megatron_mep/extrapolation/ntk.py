"""NTK-aware interpolation: low frequencies are pressed together, the highest stays, by one change of the base."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.rotary import Rotary, angles_at
from megatron_mep.extrapolation.frequencies import FixedFrequencyTrick, FrequencyTrick, pair_numbers


class Ntk(FixedFrequencyTrick):
    """The base b becomes b s^(D / (D - 2)): the highest frequency stays, the lowest is divided by s.

    In between, the frequency of pair m is divided by s^(2m / (D - 2)), of D dimensions that the series runs over.

    Source: the NTK-aware interpolation of "YaRN: Efficient Context Window Extension of Large Language Models",
    arXiv:2309.00071, as its released code has it.
    """

    name: Literal["ntk"] = "ntk"
    source: ClassVar[str] = "arXiv:2309.00071, NTK-aware"
    formula: ClassVar[str] = "b -> b s^(D/(D-2))"

    factor: float = Field(ge=1)
    """How many times the training length is read, s: what the lowest frequency is divided by."""

    def share(self, encoding: Rotary, head_size: int, train_length: int) -> Tensor:  # noqa: ARG002
        """`s^(-2m / (D - 2))`."""
        return _share(torch.tensor(self.factor, dtype=torch.float64), encoding, head_size)


class DynamicNtk(FrequencyTrick):
    """The NTK-aware change with an s that follows the length n: s = a n / L - (a - 1), and 1 up to the training length.

    The length is the largest position and one. All queries and keys of a forward pass turn by the same frequencies:
    beyond the training length L, logits depend on how much text is read at once, and decoding, whose cached keys turn
    anew with each token, does not repeat those of a whole forward pass.

    Source: the dynamic scaling of "YaRN: Efficient Context Window Extension of Large Language Models",
    arXiv:2309.00071, as its released code has it; the default is the paper's s = n / L, reconstructed.
    """

    name: Literal["dynamic_ntk"] = "dynamic_ntk"
    source: ClassVar[str] = "arXiv:2309.00071, dynamic scaling"
    formula: ClassVar[str] = "b -> b s^(D/(D-2)), s = max(1, a n/L - a + 1)"

    factor: float = Field(1.0, gt=0)
    """How fast s grows with the length, a."""

    def methods(self, encoding: Rotary, train_length: int) -> dict[str, Callable[..., Any]]:
        """Angles by the frequencies of the length."""

        def angles(_: Rotary, position: Tensor, head_size: int, **__: Tensor) -> Tensor:
            length = position.max().double() + 1
            factor = (self.factor * length / train_length - (self.factor - 1)).clamp(min=1)
            frequency = encoding.frequencies(head_size).to(position.device)
            return angles_at(position, _share(factor, encoding, head_size) * frequency)

        return {"angles": angles}


def _share(factor: Tensor, encoding: Rotary, head_size: int) -> Tensor:
    """`factor^(-2m / (D - 2))` of each pair m, on the device of `factor`, a number in fp64: `[head_size // 2]`."""
    size = encoding.series_size(head_size)
    # a single pair has the highest frequency alone
    return factor ** (pair_numbers(head_size).to(factor.device) * (-2 / max(size - 2, 1)))
