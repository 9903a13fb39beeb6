"""Randomized positions: in training, tokens stand at some positions out of many more than there are tokens."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, field_validator
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.absolutes import AnyAbsolute
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import (
    DistanceBias,
    Encoding,
    LayerSizes,
    PairScores,
    PositionBias,
    Rotation,
    Sharable,
    Weight,
)
from megatron_mep.encodings.biases import AnyBias
from megatron_mep.encodings.placement import Embedded, Placed
from megatron_mep.encodings.products import scores
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.rotations import AnyRotation
from megatron_mep.encodings.sinusoidal import Sinusoidal


class Randomized(Placed, Encoding):
    """What all kinds have in common: where tokens stand, and an encoding that is told so."""

    inner: Encoding
    range: PositiveInt | None = None
    """Positions that training draws from, M; by default 16 times the training length, the longest evaluated one."""
    evaluation: Literal["in_order", "sampled"] = "in_order"
    """Where tokens stand in evaluation: at 0, 1, 2, ..., or with gaps as in training, the same in every evaluation."""
    train_length: PositiveInt | None = None
    """Tokens of a sequence in training, L; the run's where absent."""

    inner_kinds: ClassVar[tuple[type, ...]]
    """What the inner encoding must be one of, and of no other kind that positions act on."""
    inner_means: ClassVar[str]
    """The same in words."""

    @field_validator("inner")
    @classmethod
    def _inner_fits(cls, inner: Encoding) -> Encoding:
        others = tuple({Rotation, DistanceBias, PositionBias, Embedded, Placed} - {*cls.inner_kinds})
        if not isinstance(inner, cls.inner_kinds) or isinstance(inner, others):
            raise ValueError(f"must {cls.inner_means} and do nothing else, which {inner.name} does not; choose another")
        if isinstance(inner, Sharable) and inner.shared_by_layers:
            raise ValueError(
                f"must have weights of its own in every layer; set shared_by_layers of {inner.name} to false"
            )
        return inner

    @property
    def learned(self) -> bool:
        """Whether the inner encoding learns."""
        return self.inner.learned

    def resolved(self, train_length: int) -> Self:
        """Itself, with what follows the training length filled in; the inner encoding is trained on the whole range."""
        length = self.train_length or train_length
        positions = self.range or 16 * length
        known = {"train_length": length, "range": positions, "inner": self.inner.resolved(positions)}
        return self.model_copy(update=known)

    def reading(self, spellings: Sequence[bytes]) -> Self:
        """Itself, with an inner encoding that knows the vocabulary."""
        return self.model_copy(update={"inner": self.inner.reading(spellings)})

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """Those of the inner encoding, and a range with too few positions to draw from."""
        mistakes = [mistake.under("inner") for mistake in self.inner.mistakes(sizes)]
        if self.range and self.train_length and self.range < self.train_length:
            rule = f"must be the training length of {self.train_length} tokens or more, to draw their positions from"
            remedy = f"set it to {16 * self.train_length}, or leave it out"
            mistakes.append(Mistake("range", self.range, rule, remedy))
        return mistakes

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """Those of the inner encoding."""
        return self.inner.layer_weights(sizes, generator)

    def query_factor(self, position: Tensor) -> Tensor | None:
        """The inner encoding's, at the places of the queries."""
        return self.inner.query_factor(_common(position))

    def places(self, tokens: Tensor, training: bool) -> Tensor:
        """Where tokens stand, `[1, B, S]`, alike in all samples of a batch."""
        assert self.range is not None, "the training length fills it in"
        assert self.train_length is not None, "the run fills it in"
        length = tokens.size(-1)
        if training:
            assert length <= self.range, f"{length} tokens cannot stand at {self.range} positions"
            # drawn on the CPU, so that every device is given the same
            place = torch.randperm(self.range)[:length].sort().values
        elif self.evaluation == "in_order":
            place = torch.arange(length)
        else:
            place = _with_gaps(length, self.train_length / self.range)
        return place.to(tokens.device).expand(1, *tokens.shape)


class RandomizedRotation(Randomized, Rotation):
    """An inner rotation of tokens at L positions drawn in order, without replacement, from 0 .. M - 1 in training.

    One draw for each batch. The paper has M = 2048 for up to 40 tokens in training and 500 in evaluation, where
    positions are drawn too; here they are 0, 1, 2, ... there by default. `sampled` gives gaps of the mean M / L of
    training, in place of a draw for each length: a token's place must not depend on how many tokens follow. It leaves
    the range where a sequence is longer than those of training.

    Source: "Randomized Positional Encodings Boost Length Generalization of Transformers", arXiv:2305.16843, section 3,
    and the authors' code.
    """

    name: Literal["randomized_rotation"] = "randomized_rotation"
    source: ClassVar[str] = "arXiv:2305.16843, section 3"
    formula: ClassVar[str] = "turn at sorted positions drawn from M"
    inner_kinds: ClassVar[tuple[type, ...]] = (Rotation,)
    inner_means: ClassVar[str] = "turn queries and keys by their positions"

    inner: AnyRotation = Rope()
    """The rotation."""

    @property
    def turns_heads_apart(self) -> bool:
        """As the inner rotation says."""
        return self._rotation.turns_heads_apart

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:
        """The inner rotation's."""
        return self._rotation.angles(position, head_size, **weights)

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        """Queries or keys `[S, B, H, D]`, turned by the inner rotation at their places."""
        return self._rotation.turned(heads, _common(position), **weights)

    @property
    def _rotation(self) -> Rotation:
        assert isinstance(self.inner, Rotation), "it was refused before"
        return self.inner


class RandomizedBias(Randomized, PairScores):
    """An inner bias between tokens at L positions drawn in order, without replacement, from 0 .. M - 1 in training.

    All else as for `randomized_rotation`. The bias of positions so far apart is computed for every pair, by whatever
    formula the inner one has.

    Source: "Randomized Positional Encodings Boost Length Generalization of Transformers", arXiv:2305.16843, section 3,
    and the authors' code.
    """

    name: Literal["randomized_bias"] = "randomized_bias"
    source: ClassVar[str] = "arXiv:2305.16843, section 3"
    formula: ClassVar[str] = "bias between sorted positions drawn from M"
    inner_kinds: ClassVar[tuple[type, ...]] = (DistanceBias, PositionBias)
    inner_means: ClassVar[str] = "be a bias by distance or by positions"

    inner: AnyBias = Alibi()
    """The bias, by distance or by positions."""

    def of_pairs(
        self, query: Tensor, key: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        """The scores and the inner bias, `[B, H, Q, K]`."""
        at_query, at_key = _common(query_position), _common(key_position)
        if isinstance(self.inner, PositionBias):
            bias = self.inner.of_positions(at_query, at_key, **weights)
        else:
            assert isinstance(self.inner, DistanceBias), "it was refused before"
            bias = self.inner.of_distance((at_query[:, None] - at_key).clamp(min=0), **weights)
        return scores(query, key) + bias.to(query.dtype)


class RandomizedAbsolute(Randomized, Embedded):
    """Inner vectors added to tokens at L positions drawn in order, without replacement, from 0 .. M - 1 in training.

    All else as for `randomized_rotation`. A learned table has M rows.

    Source: "Randomized Positional Encodings Boost Length Generalization of Transformers", arXiv:2305.16843, section 3,
    and the authors' code.
    """

    name: Literal["randomized_absolute"] = "randomized_absolute"
    source: ClassVar[str] = "arXiv:2305.16843, section 3"
    formula: ClassVar[str] = "add vectors of sorted positions drawn from M"
    inner_kinds: ClassVar[tuple[type, ...]] = (Embedded,)
    inner_means: ClassVar[str] = "add vectors to embeddings"

    inner: AnyAbsolute = Sinusoidal()
    """The vectors."""

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """A table that ends before the range does, besides."""
        mistakes = super().mistakes(sizes)
        told_apart = self.num_told_apart
        if told_apart is not None and self.range and told_apart < self.range:
            rule = f"must not be less than the range of {self.range} positions that training draws from"
            remedy = "leave it out, or set range to no more"
            mistakes.append(Mistake("inner.num_positions", told_apart, rule, remedy))
        return mistakes

    @property
    def num_told_apart(self) -> int | None:
        """As many as the inner encoding does."""
        return self._absolute.num_told_apart

    def embedding_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """Those of the inner encoding."""
        return self._absolute.embedding_weights(sizes, generator)

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:
        """The inner vectors at the tokens' places, `[S, hidden_size]`."""
        return self._absolute.added(_common(position), hidden_size, **weights)

    @property
    def _absolute(self) -> Embedded:
        assert isinstance(self.inner, Embedded), "it was refused before"
        return self.inner


def _common(position: Tensor) -> Tensor:
    """The places `[S]` that all samples of `[1, B, S]` have."""
    return position[0, 0]


def _with_gaps(length: int, density: float) -> Tensor:
    """Places `[length]`: each of 0, 1, 2, ... is one with the probability `density`, always the same ones."""
    # above zero, so that its logarithm is finite
    chance = 1 - torch.rand(length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gap = (chance.log() / torch.log1p(torch.tensor(-density, dtype=torch.float64))).ceil().clamp(min=1)
    return gap.long().cumsum(-1) - 1
