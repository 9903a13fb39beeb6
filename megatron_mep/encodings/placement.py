"""Encodings that act on the embeddings of tokens, and those that place tokens elsewhere than in order."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes, Weight


class Embedded(ABC):
    """Mixed into an `Encoding` that adds vectors to the embeddings of tokens, whatever else it does in the layers."""

    def embedding_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """The weights of the vectors, once in the model; none is per head."""
        return {}

    @property
    def num_told_apart(self) -> int | None:
        """How many positions get vectors of their own, all beyond sharing the last one's; `None` for all."""
        return None

    @abstractmethod
    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:
        """The vectors that are added.

        Args:
            position: Whole numbers >= 0 in fp32 or fp64, `[S]`; `[T, B, S]` where the encoding is `Placed`.
            hidden_size: Of the residual stream.
            weights: The tensors that `embedding_weights` declares.

        Returns:
            `[S, hidden_size]` or `[B, S, hidden_size]` in fp32 or wider.
        """


class Placed(ABC):
    """Mixed into an `Encoding` of positions that are not 0, 1, 2, ...: of T numbers for each token, called tracks.

    It may be a `Rotation`, a `PairScores`, `Embedded`, or several of these; all of them are given its tracks.
    """

    @abstractmethod
    def places(self, tokens: Tensor, training: bool) -> Tensor:
        """The tracks of whole sequences, before any split over ranks: whole numbers >= 0, `[T, B, S]` in int64.

        Outside training a token's places follow from the tokens up to itself, as decoding needs it. In training they
        may be drawn, from torch's default generator, whose state is alike on tensor ranks and kept in checkpoints.

        Args:
            tokens: `[B, S]`.
            training: Whether the model trains.
        """
