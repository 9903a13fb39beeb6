"""What a positional encoding is: hyper-parameters, the weights it declares, and its formula as a pure function.

Shape letters used in the whole project:

    B batch          S sequence positions    H query heads: of all ranks in `weights`, of one rank everywhere else
    Q query positions    K key positions     G key/value heads (query groups)    D size of a head    V vocabulary

An encoding owns no `nn.Parameter`. It declares `Weight`s for all heads of the model; one place slices them over tensor
ranks, keeps them in fp32, hands the learned ones to the optimizer and stores all of them in the checkpoint.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from megatron_mep.config.base import Config


@dataclass(frozen=True)
class Weight:
    """A tensor of an encoding, declared for all heads before any split over ranks."""

    value: Tensor
    """Initial value, fp32; dim 0 is H where `per_head`."""
    learned: bool = True
    """Trained, in an optimizer group of its own without weight decay. Otherwise constant, yet stored in checkpoints."""
    per_head: bool = True
    """Dim 0 is sliced over tensor ranks. Otherwise every rank holds it whole, and gradients are summed over them."""


class Encoding(Config, ABC):
    """A positional encoding as the run file states it; the base that acts on nothing.

    One of your own is a subclass in a module of your own, importable by every rank; the run file names it
    `module:Class`, so leave `name` the plain string that it is here.
    """

    name: str
    """Chooses the encoding."""
    source: ClassVar[str]
    """Where the formula is from: paper and equation, or what was reconstructed from what."""
    formula: ClassVar[str]
    """One line for tables, in the docstring's notation."""

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """The weights of one layer for all `num_heads` query heads of the model, random ones drawn from `generator`."""
        return {}

    @property
    def learned(self) -> bool:
        """Whether any weight is trained: to be overridden where `weights` refuses to declare those of a single head."""
        return any(weight.learned for weight in self.weights(1, torch.Generator()).values())


class DistanceBias(Encoding):
    """A bias b_h(d) added to the scaled scores, a function of the distance d = query position - key position alone."""

    @abstractmethod
    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias of every head at every distance.

        Args:
            distance: Whole numbers >= 0 in fp32 or fp64, of any shape.
            weights: The tensors that `weights` declares, those per head with this rank's H heads in dim 0.

        Returns:
            `[H, *distance.shape]` in the wider of fp32 and the distance's type, finite, with finite gradients.
        """


class Rotation(Encoding):
    """A rotation of queries and keys by their positions; the scores then depend on the difference of positions."""

    @abstractmethod
    def angles(self, position: Tensor, head_size: int) -> Tensor:
        """The angles in radians by which pairs of dimensions turn: `[*position.shape, head_size // 2]`, fp32 or wider.

        Pair m is made of dimensions m and m + head_size // 2 (the split-half layout of GPT-NeoX and Llama); an angle
        of zero leaves it as it is. Positions are whole numbers in fp32 or fp64.
        """


def per_head(weight: Tensor, like: Tensor) -> Tensor:
    """A weight `[H]` shaped `[H, 1, ...]` to meet a distance of any shape, in the distance's type."""
    return weight.to(like.dtype).reshape(-1, *(1,) * like.dim())
