"""Attention to the nearest keys alone."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, PairScores, PositionBias, ScoreMix
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Placed
from megatron_mep.extrapolation.base import Trick, changed


class Windowed:
    """Mixed into an encoding whose distances a window counts: it must be given those between tokens."""


class WindowAlone(Windowed, DistanceBias):
    """Mixed into an encoding that has no bias by distance but that of its window."""


class Window(Trick):
    """Keys at a distance of `size` or more are not seen.

    It tells what a longer context is worth to a model that survives it. On a CPU, and by kernels with windows on a GPU,
    keys out of the window cost nothing where `model.attention_epsilon` is above 0.

    Source: the windowed control of "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
    arXiv:2205.09921.
    """

    name: Literal["window"] = "window"
    source: ClassVar[str] = "arXiv:2205.09921"
    formula: ClassVar[str] = "b(d) -> -inf where d >= W"

    size: int | None = Field(None, ge=1)
    """How many keys a query sees, itself among them, W; the training length where absent."""

    def against(self, encoding: Encoding) -> str | None:
        """It needs distances in tokens, and scores of pairs, each of which may be excluded."""
        if isinstance(encoding, KeyBias | ScoreMix | Carried | Placed):
            return "needs an encoding that acts on pairs by the positions of their tokens, or on none"
        return None

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The encoding with a bias that excludes."""
        size = self.size or train_length
        if isinstance(encoding, PositionBias):
            by_positions = encoding.of_positions

            def of_positions(_: Encoding, query_position: Tensor, key_position: Tensor, **weights: Tensor) -> Tensor:
                outside = query_position[:, None] - key_position >= size
                return by_positions(query_position, key_position, **weights).masked_fill(outside, -torch.inf)

            return changed(encoding, self, Windowed, of_positions=of_positions)
        if isinstance(encoding, PairScores):
            # as methods of the changed one: it may learn the length before it scores
            by_pairs = type(encoding).of_pairs

            def of_pairs(
                changed_one: PairScores, query: Tensor, key: Tensor, at_query: Tensor, at_key: Tensor, **weights: Tensor
            ) -> Tensor:
                outside = at_query[:, None] - at_key >= size
                return by_pairs(changed_one, query, key, at_query, at_key, **weights).masked_fill(outside, -torch.inf)

            return changed(encoding, self, Windowed, of_pairs=of_pairs)
        if isinstance(encoding, DistanceBias):
            by_distance = encoding.of_distance

            def of_distance(_: Encoding, distance: Tensor, **weights: Tensor) -> Tensor:
                return by_distance(distance, **weights).masked_fill(distance >= size, -torch.inf)

            return changed(encoding, self, Windowed, of_distance=of_distance)

        def alike(_: Encoding, distance: Tensor, **__: Tensor) -> Tensor:
            return torch.zeros_like(distance).masked_fill(distance >= size, -torch.inf)[None]

        return changed(encoding, self, WindowAlone, of_distance=alike)
