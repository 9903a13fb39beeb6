"""Encodings whose positions are states of tokens, which each layer changes and hands on to the next."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.rotate import turn


class Carried(Encoding):
    """A state of every token and head, which turns its queries and keys and travels beside the hidden states.

    A state has D numbers, as a head has dimensions: a cosine and a sine for each pair of these. Once changed they need
    not be those of an angle. Every layer but the last changes the states by the weights that `layer_weights` declares;
    the last has none, since nothing would read what they do.
    """

    across_heads: ClassVar[bool] = True
    """States of all heads travel together: tensor ranks would divide them."""

    @abstractmethod
    def initial(self, position: Tensor, head_size: int) -> Tensor:
        """The states before the first layer, the same for all heads.

        Args:
            position: Whole numbers >= 0 in fp32 or fp64, `[S]`.
            head_size: D.

        Returns:
            `[S, D]` in the wider of fp32 and the position's type: D // 2 cosines, then D // 2 sines.
        """

    def turned(self, heads: Tensor, states: Tensor) -> Tensor:
        """Queries or keys `[S, B, H, D]`, each of whose pairs (m, m + D // 2) its state of that shape multiplies."""
        return turn(heads, *states.chunk(2, dim=-1))

    @abstractmethod
    def updated(self, states: Tensor, attended: Tensor, output: Tensor, **weights: Tensor) -> Tensor:
        """The states that the next layer turns by.

        Args:
            states: Those of this layer, `[S, B, H, D]` in fp32 or wider.
            attended: The states of the keys, averaged by the attention weights of each query and head; alike.
            output: What the feed-forward layer adds to the hidden states, `[S, B, hidden_size]` in the model's type.
            weights: The tensors that `layer_weights` declares, for all heads.

        Returns:
            `[S, B, H, D]` in the type of the states, a function of each token's own arguments alone.
        """
