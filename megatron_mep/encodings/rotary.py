"""Rotations whose pairs turn on by the same angle from each position to the next."""

from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import LayerSizes, Rotation


class Rotary(Rotation):
    """Pair m turns by position * frequency_m, the frequencies a geometric series or a part of one."""

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths."""

    def series_size(self, head_size: int) -> int:
        """Dimensions D over which the series runs: frequency_m = base^(-2m/D)."""
        return head_size

    @abstractmethod
    def frequencies(self, head_size: int) -> Tensor:
        """Radians by which each pair turns from one position to the next, `[head_size // 2]` in fp64.

        They fall from pair to pair; pairs that do not turn come last and have frequency 0.
        """

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The angles `[*position.shape, head_size // 2]` in radians; pairs that do not turn have angle 0."""
        return angles_at(position, self.frequencies(head_size))


def geometric(base: float, size: int) -> Tensor:
    """The series base^(-2m/size) of `size // 2` frequencies, in fp64."""
    exponent = torch.arange(size // 2, dtype=torch.float64) * (2 / max(size, 1))
    return torch.as_tensor(base, dtype=torch.float64) ** -exponent


def angles_at(position: Tensor, frequency: Tensor) -> Tensor:
    """Angles `[*position.shape, pairs]` of frequencies `[pairs]` in fp64, reduced where positions are fp32."""
    # fp64 until the product: at position 131071 an fp32 product is off by 2^-8 of a radian
    angle = position.double().unsqueeze(-1) * frequency.to(position.device)
    return angle if position.dtype == torch.float64 else torch.remainder(angle, 2 * torch.pi).float()


def fitting(frequency: Tensor, train_length: int) -> Tensor:
    """The frequencies whose period is no longer than `train_length` positions."""
    return frequency[frequency >= 2 * torch.pi / train_length]


def too_short(train_length: int | None) -> list[Mistake]:
    """What to tell of a length, where one is known, in which not even the period of the fastest pair fits."""
    if train_length is None or train_length >= 2 * torch.pi:
        return []
    rule = "must be 7 or more: no pair of dimensions turns once around in less"
    return [Mistake("train_length", train_length, rule, "set it, or training.seq_length, to 7 or more")]


def odd_heads(name: str, sizes: LayerSizes) -> list[Mistake]:
    """What to tell of heads that do not divide into pairs."""
    if sizes.head_size % 2 == 0:
        return []
    rule = f"turns pairs of dimensions, and heads of size {sizes.head_size} have one to spare"
    return [Mistake("name", name, rule, "give heads an even size by model.hidden_size, or choose another encoding")]
