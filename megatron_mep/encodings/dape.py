"""DAPE: a bias adapted to the scores that it is added to, by a small network over all heads."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, field_validator
from torch import Tensor
from torch.nn.functional import leaky_relu, pad

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import (
    DistanceBias,
    Encoding,
    LayerSizes,
    PositionBias,
    ScoreMix,
    Sharable,
    Weight,
)
from megatron_mep.encodings.biases import AnyBias
from megatron_mep.encodings.kerple import KerpleLog
from megatron_mep.encodings.placement import Embedded, Placed

INNER = "inner_"
"""What the names of the inner bias's weights begin with."""


class AdaptedBias(ScoreMix):
    """S + B + f(S, B): the scores S of all heads, an inner bias B, and what a network f of one hidden layer adds."""

    across_heads: ClassVar[bool] = True

    inner: AnyBias = KerpleLog()
    """The bias B, by distance or by positions; every layer has weights of its own."""
    width: PositiveInt = 32
    """Hidden channels of f."""

    @property
    @abstractmethod
    def num_taps(self) -> int:
        """How many neighbouring keys each layer of f reads."""

    @field_validator("inner")
    @classmethod
    def _inner_is_a_bias(cls, inner: Encoding) -> Encoding:
        if not isinstance(inner, DistanceBias | PositionBias) or isinstance(inner, Embedded | Placed):
            raise ValueError(f"must be a bias by distance or by positions, which {inner.name} is not; choose another")
        if isinstance(inner, Sharable) and inner.shared_by_layers:
            raise ValueError(f"must have weights of its own in every layer; leave shared_by_layers of {inner.name} out")
        return inner

    @property
    def learned(self) -> bool:
        """Always: f."""
        return True

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """Those of the inner bias."""
        return [mistake.under("inner") for mistake in self.inner.mistakes(sizes)]

    def resolved(self, train_length: int) -> Self:
        """Itself, with the inner bias resolved."""
        return self.model_copy(update={"inner": self.inner.resolved(train_length)})

    def reading(self, spellings: Sequence[bytes]) -> Self:
        """Itself, with an inner bias that knows the vocabulary."""
        return self.model_copy(update={"inner": self.inner.reading(spellings)})

    def query_factor(self, position: Tensor) -> Tensor | None:
        """The inner bias's."""
        return self.inner.query_factor(position)

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """Those of the inner bias and those of f.

        `hidden [width, 2 H, taps]`, of whose channels those of the scores come first, `hidden_bias [width]` and
        `outer [H, width, taps]`.
        """
        inner = self.inner.layer_weights(sizes, generator)
        channels, taps = 2 * sizes.num_heads, self.num_taps
        return {f"{INNER}{name}": weight for name, weight in inner.items()} | {
            "hidden": Weight(_uniform(generator, channels * taps, self.width, channels, taps), per_head=False),
            "hidden_bias": Weight(_uniform(generator, channels * taps, self.width), per_head=False),
            "outer": Weight(_uniform(generator, self.width * taps, sizes.num_heads, self.width, taps)),
        }

    def of_scores(
        self,
        scores: Tensor,
        query: Tensor,  # noqa: ARG002
        query_position: Tensor,
        key_position: Tensor,
        **weights: Tensor,
    ) -> Tensor:
        """S + B + f(S, B), `[B, H, Q, K]`."""
        hidden, hidden_bias, outer = (weights[name].to(scores.dtype) for name in ("hidden", "hidden_bias", "outer"))
        # what f reads of keys in the future is zero, or it would tell of them through their neighbours
        future = key_position > query_position[:, None]
        bias = self._bias(query_position, key_position, weights).to(scores.dtype).masked_fill(future, 0)
        # as is the bias -inf of a key that the inner bias excludes, or all that f makes of it would be NaN
        finite = bias.masked_fill(bias.isneginf(), 0)
        reach, num_keys = self.num_taps // 2, scores.size(-1)
        # hidden values beyond the last key are computed, as they are beyond any key that another follows
        read = pad(torch.cat((scores, finite.expand_as(scores)), dim=1), (reach, 2 * reach))
        activation = leaky_relu(_convolved(read, hidden) + hidden_bias[:, None, None])
        mixed = _convolved(pad(activation, (reach, 0)), outer)
        assert mixed.size(-1) == num_keys, f"{mixed.size(-1)} mixed scores of {num_keys} keys"
        return scores + bias + mixed

    def _bias(self, query_position: Tensor, key_position: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """B, `[H, Q, K]`; of keys in the future anything finite."""
        own = {name.removeprefix(INNER): weight for name, weight in weights.items() if name.startswith(INNER)}
        match self.inner:
            case DistanceBias():
                return self.inner.of_distance((query_position[:, None] - key_position).clamp(min=0), **own)
            case PositionBias():
                return self.inner.of_positions(query_position, key_position, **own)
        raise AssertionError(f"{self.inner.name} is no bias")


class Dape(AdaptedBias):
    """S + B + f(S, B), f a network 2H -> width -> H over the scores and biases of all heads, for each pair alone.

    f is a linear layer, a leaky ReLU and a linear layer, with torch's initial values U(-1, 1) / sqrt(inputs), as in the
    authors' code. The bias of its last layer is left out: a constant of a head changes nothing after the softmax.
    The inner bias has weights of its own in every layer. Tensor ranks would divide the heads, and are refused.

    Source: "DAPE: Data-Adaptive Positional Encoding for Length Extrapolation", arXiv:2405.14722, and the authors'
    code.
    """

    name: Literal["dape"] = "dape"
    source: ClassVar[str] = "arXiv:2405.14722 and the authors' code"
    formula: ClassVar[str] = "S + B + f(S, B)"

    @property
    def num_taps(self) -> int:
        """One: each pair alone."""
        return 1


class DapeV2(AdaptedBias):
    """S + B + f(S, B), f two convolutions over `kernel_size` neighbouring keys, from 2H channels to width to H.

    As `dape`, which is `kernel_size: 1`, but that each layer of f reads the keys around each pair of a query and a key,
    those in the future as zeros. The authors' code gives zeros, too, for hidden values beyond the last key of a
    sequence, which the last (kernel_size - 1) / 2 queries read; here these are computed as they are for any other
    query, since a query's output must not depend on where the sequence ends.

    Source: "DAPE V2: Process Attention Score as Feature Map for Length Extrapolation", arXiv:2410.04798, and the
    authors' code.
    """

    name: Literal["dape_v2"] = "dape_v2"
    source: ClassVar[str] = "arXiv:2410.04798 and the authors' code"
    formula: ClassVar[str] = "S + B + f(S, B), f convolves over keys"

    kernel_size: PositiveInt = 3
    """Keys that each convolution reads, an odd number: 1, 3, 5 and 7 in the paper."""

    @field_validator("kernel_size")
    @classmethod
    def _kernel_has_a_middle(cls, kernel_size: int) -> int:
        if kernel_size % 2 == 0:
            raise ValueError(f"must be odd, so that as many keys are read on either side; try {kernel_size - 1}")
        return kernel_size

    @property
    def num_taps(self) -> int:
        """The kernel's."""
        return self.kernel_size


def _uniform(generator: torch.Generator, num_inputs: int, *sizes: int) -> Tensor:
    """U(-1, 1) / sqrt(num_inputs)."""
    return (2 * torch.rand(sizes, generator=generator, dtype=torch.float32) - 1) / math.sqrt(num_inputs)


def _convolved(values: Tensor, taps: Tensor) -> Tensor:
    """The convolution of `[B, C, Q, K + taps - 1]` with `taps [O, C, taps]` along the keys, `[B, O, Q, K]`.

    By matrix products, which stay fp32 on a GPU, where convolutions are rounded to TF32 unless told not to.
    """
    num_keys = values.size(-1) - taps.size(-1) + 1
    total = values.new_zeros(())
    for shift, tap in enumerate(taps.unbind(-1)):
        total = total + torch.einsum("bcqk,oc->boqk", values, tap)[..., shift : shift + num_keys]
    return total
