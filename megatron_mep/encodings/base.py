"""What a positional encoding is: hyper-parameters, the weights it declares, and its formula as a pure function.

Shape letters used in the whole project:

    B batch          S sequence positions    H query heads: of all ranks in `weights`, of one rank everywhere else
    Q query positions    K key positions     G key/value heads (query groups)    D size of a head    V vocabulary

An encoding owns no `nn.Parameter`. It declares `Weight`s for all heads of the model; one place slices them over tensor
ranks, keeps them in fp32, hands the learned ones to the optimizer and stores all of them in the checkpoint.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.rotate import rotate


@dataclass(frozen=True)
class Weight:
    """A tensor of an encoding, declared for all heads before any split over ranks."""

    value: Tensor
    """Initial value, fp32; dim 0 is H where `per_head`."""
    learned: bool = True
    """Trained, in an optimizer group of its own without weight decay. Otherwise constant, yet stored in checkpoints."""
    per_head: bool = True
    """Dim 0 is sliced over tensor ranks. Otherwise every rank holds it whole, and gradients are summed over them."""


@dataclass(frozen=True)
class LayerSizes:
    """What the shapes of an encoding's weights may depend on."""

    num_heads: int
    """Query heads of the whole model, H."""
    hidden_size: int
    head_size: int
    """D."""


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

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """The weights of one layer: `weights`, but for an encoding whose weights have other sizes of the model too."""
        return self.weights(sizes.num_heads, generator)

    @property
    def learned(self) -> bool:
        """Whether any weight is trained: to be overridden where `weights` refuses to declare those of a single head."""
        sizes = LayerSizes(num_heads=1, hidden_size=2, head_size=2)
        return any(weight.learned for weight in self.layer_weights(sizes, torch.Generator()).values())

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """What stands against it in a model of these sizes; the keys are its own options."""
        try:
            self.layer_weights(sizes, torch.Generator())
        except ConfigError as error:
            return list(error.mistakes)
        return []

    def resolved(self, train_length: int) -> "Encoding":  # noqa: ARG002
        """Itself, with the options that follow the training length unless they are stated filled in."""
        return self

    def reading(self, spellings: Sequence[bytes]) -> "Encoding":  # noqa: ARG002
        """Itself, with the options that follow the vocabulary filled in; `spellings[t]` is the text of token t."""
        return self

    def query_factor(self, position: Tensor) -> Tensor | None:  # noqa: ARG002
        """What multiplies all scaled scores of the queries at these positions, before any bias: `[Q]`; `None` for 1."""
        return None


class Sharable(Encoding):
    """An encoding that learns, whose layers may have one set of weights for all."""

    shared_by_layers: bool = False
    """Whether all layers have the same weights; otherwise each has its own."""


class DistanceBias(Encoding):
    """A bias b_h(d) added to the scaled scores, a function of the distance d = query position - key position alone."""

    @abstractmethod
    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias of every head at every distance.

        Args:
            distance: Whole numbers >= 0 in fp32 or fp64, of any shape.
            weights: The tensors that `weights` declares, those per head with this rank's H heads in dim 0.

        Returns:
            `[H, *distance.shape]`, or `[1, ...]` where heads are alike, in the wider of fp32 and the distance's type;
            finite, with finite gradients, or -inf to exclude a distance, which 0 never is.
        """


class PositionBias(Encoding):
    """A bias b_h(i, j) added to the scaled scores, a function of both positions and not of their distance alone."""

    @abstractmethod
    def of_positions(self, query_position: Tensor, key_position: Tensor, **weights: Tensor) -> Tensor:
        """The bias of every head for every pair of a query and a key.

        Args:
            query_position: Whole numbers >= 0 in fp32 or fp64, `[Q]`.
            key_position: The same of the keys, `[K]`; some may be in the future of some queries.
            weights: The tensors that `layer_weights` declares, those per head with this rank's H heads in dim 0.

        Returns:
            `[H, Q, K]` in the wider of fp32 and the positions' type, finite, with finite gradients. That holds for keys
            in the future too, whose bias nothing reads: a distance there is best clamped to zero.
        """


class KeyBias(Encoding):
    """A bias b_h(i, j) = g_h(i) (c_h(j) - c_h(i)) added to the scaled scores, where c_h sums what tokens say of it.

    c_h(i) is the sum of the increments at positions 0 .. i. A token's increment and gain g are functions of its own
    hidden state alone, so that decoding with cached keys goes on from the sum so far.
    """

    @abstractmethod
    def increments(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        """How much c_h grows at every token.

        Args:
            hidden: What the layer projects queries and keys from, `[S, B, hidden_size]`, in the model's type.
            weights: The tensors that `layer_weights` declares, those per head with this rank's H heads in dim 0.

        Returns:
            `[B, H, S]`, fp32 or wider.
        """

    def gain(self, hidden: Tensor, **weights: Tensor) -> Tensor | None:  # noqa: ARG002
        """g_h at every token, as a query: `[B, H, S]`, fp32 or wider; `None` for 1. The arguments of `increments`."""
        return None


class ScoreMix(Encoding):
    """New scores from the scores themselves, for all heads at once.

    A query's new scores are a function of that query and of its own scores up to itself alone, whatever queries and
    keys stand beside them: queries come in chunks, with the keys up to the last of these.
    """

    across_heads: ClassVar[bool]
    """Whether the formula reads the scores of other heads: of all in the model, which tensor ranks would divide."""

    @abstractmethod
    def of_scores(
        self, scores: Tensor, query: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        """The scores that go to the softmax.

        Args:
            scores: Scaled, `[B, H, Q, K]` in fp32 or wider; zero where the key is in the future.
            query: Scaled alike, so that `scores` is their product with the keys: `[B, H, Q, D]`.
            query_position: Whole numbers >= 0 in the type of the scores, `[Q]`.
            key_position: The same of the keys, `[K]`.
            weights: The tensors that `layer_weights` declares, those per head with this rank's H heads in dim 0.

        Returns:
            `[B, H, Q, K]`, finite, with finite gradients; what it says of keys in the future is not read.
        """


class PairScores(Encoding):
    """Scores of queries and keys, where these cannot be turned by their own positions alone.

    A score is a function of its query and its key alone, whatever others stand beside them: queries come in chunks,
    with the keys up to the last of these.
    """

    def at_length(self, num_keys: int) -> "PairScores":  # noqa: ARG002
        """Itself, for queries that are the last of `num_keys` positions: their number may decide who sees whom."""
        return self

    @abstractmethod
    def of_pairs(
        self, query: Tensor, key: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        """The scores that go to the softmax; `products.scores` multiplies queries and keys.

        Args:
            query: Scaled, `[B, H, Q, D]` in fp32 or wider.
            key: `[B, G, K, D]`; head h reads group h // (H // G).
            query_position: Whole numbers >= 0 in the type of the queries, `[Q]`; `[T, B, Q]` where the encoding is
                `Placed`.
            key_position: The same of the keys, `[K]`; some may be in the future of some queries.
            weights: The tensors that `layer_weights` declares, those per head with this rank's H heads in dim 0.

        Returns:
            `[B, H, Q, K]`, finite, with finite gradients, or -inf for pairs that do not see each other: a query sees
            itself at least. What it says of keys in the future is not read, but must not be NaN.
        """


class Rotation(Encoding):
    """A rotation of queries and keys by their positions; the scores then depend on the difference of positions."""

    keeps_norms: ClassVar[bool] = True
    """Whether queries and keys stay as long as they are, so that a bound of the scores holds once they have turned."""

    @property
    def turns_heads_apart(self) -> bool:
        """Whether query heads of one group turn its keys differently, so that each needs a copy of them."""
        return False

    @abstractmethod
    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:
        """The angles in radians by which pairs of dimensions turn: `[*position.shape, head_size // 2]`, fp32 or wider.

        Pair m is made of dimensions m and m + head_size // 2, as in GPT-NeoX and Llama. Positions are fp32 or fp64.
        """

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        """Queries or keys `[S, B, H, D]` at `position [S]`, turned by `angles` unless a subclass does more to them.

        Where the encoding is `Placed`, positions are `[T, B, S]`: the subclass says which track it turns by.
        """
        return rotate(heads, self.angles(position, heads.size(-1), **weights))


def per_head(weight: Tensor, like: Tensor) -> Tensor:
    """A weight `[H]` shaped `[H, 1, ...]` to meet a distance of any shape, in the distance's type."""
    return weight.to(like.dtype).reshape(-1, *(1,) * like.dim())
