"""What the tricks that change the frequencies of a rotation share."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.placement import Placed
from megatron_mep.encodings.rotary import Rotary
from megatron_mep.extrapolation.base import Trick, changed, replaced


class FrequencyTrick(Trick):
    """A change of the frequencies by which pairs turn; pairs that do not turn stay as they are."""

    also: ClassVar[tuple[type[Any], ...]] = ()
    """What the changed encoding is besides a rotation."""

    def against(self, encoding: Encoding) -> str | None:
        """It needs frequencies, and those of training."""
        if not isinstance(encoding, Rotary) or isinstance(encoding, Placed):
            return "needs an encoding that turns pairs by position times frequency"
        if "frequencies" in replaced(encoding) or type(encoding).angles is not Rotary.angles:
            return "needs angles that are position times the frequencies of training"
        return None

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The rotation by other frequencies."""
        assert isinstance(encoding, Rotary), "it was refused before"
        return changed(encoding, self, *self.also, **self.methods(encoding, train_length))

    @abstractmethod
    def methods(self, encoding: Rotary, train_length: int) -> dict[str, Callable[..., Any]]:
        """The methods of the encoding that it replaces, as `changed` takes them."""


class FixedFrequencyTrick(FrequencyTrick):
    """One whose frequencies hold at every length."""

    def methods(self, encoding: Rotary, train_length: int) -> dict[str, Callable[..., Any]]:
        """The frequencies of training times their share."""

        def frequencies(_: Rotary, head_size: int) -> Tensor:
            return self.share(encoding, head_size, train_length) * encoding.frequencies(head_size)

        return {"frequencies": frequencies}

    @abstractmethod
    def share(self, encoding: Rotary, head_size: int, train_length: int) -> Tensor:
        """What each frequency is multiplied by: `[head_size // 2]` in fp64."""


def pair_numbers(head_size: int) -> Tensor:
    """m = 0, 1, ... of the pairs of a head: `[head_size // 2]` in fp64."""
    return torch.arange(head_size // 2, dtype=torch.float64)
