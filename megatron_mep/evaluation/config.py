"""The `evaluation` and `validation` sections of a run file: lengths, protocols, and how much text is scored."""

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.lengths import Length, Lengths

Protocol = Literal["blocks", "sliding", "last-k", "per-position"]

DEFAULT_MULTIPLES = (1, 2, 4, 8, 16)


class EvaluationConfig(Config):
    """At which lengths, by which protocols and on how much text perplexity is measured."""

    lengths: Lengths | None = None
    """Numbers of input tokens, ascending; by default 1, 2, 4, 8 and 16 times the training length."""
    protocols: tuple[Protocol, ...] = Field(default=("blocks", "last-k"), min_length=1)
    """`blocks`: disjoint windows, every token scored. `per-position`: the same, and the loss at each position besides.
    `sliding`: windows `stride` apart, the newest tokens of each scored. `last-k`: long windows, only the last scored.
    """
    last_k: int | None = Field(default=None, gt=0)
    """Scored tokens of a window in `last-k`; by default 256, or half the shortest window where that is less."""
    tokens: int | None = Field(default=None, gt=0)
    """Scored tokens but in `last-k`, a multiple of every length; by default the least such number from 262144 on."""
    stride: int | None = Field(default=None, gt=0)
    """Tokens from one window to the next in `sliding`, 1 for the most context; by default as `last_k`."""
    position_bins: int = Field(default=64, gt=0)
    """Into how many ranges of like length `per-position` divides a window, at most."""
    spans: int = Field(default=128, gt=0)
    """Windows in `last-k`, spread evenly over the stream: `spans` times `last_k` tokens are scored."""
    control: bool = True
    """Score the same tokens with their context cut to the training length too: what a longer context is worth."""
    batch_tokens: int = Field(default=8192, gt=0)
    """Input tokens in one forward pass, at least one window; memory grows with it, what is scored stays the same."""

    @field_validator("protocols")
    @classmethod
    def _unique(cls, protocols: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
        if len(set(protocols)) < len(protocols):
            raise ValueError(f"must name each protocol once; write {list(dict.fromkeys(protocols))}")
        return protocols

    def resolved(self, train_length: int) -> "ResolvedEvaluation":
        """This section with every default worked out for a training length; all that cannot hold is a `ConfigError`."""
        lengths = self.lengths or tuple(train_length * multiple for multiple in DEFAULT_MULTIPLES)
        shortest = min(lengths[0], train_length) if self.control else lengths[0]
        worked_out = {
            "lengths": lengths,
            "tokens": self.tokens or least_multiple(lengths, 262_144),
            "last_k": self.last_k or min(256, shortest // 2),
            "stride": self.stride or min(256, shortest // 2),
            "train_length": train_length,
        }
        resolved = ResolvedEvaluation(**{**self.model_dump(), **worked_out})
        mistakes = list(_mistakes(resolved))
        if mistakes:
            raise ConfigError(mistakes)
        return resolved


class ResolvedEvaluation(EvaluationConfig):
    """An evaluation of a model of known training length: nothing is left to defaults."""

    lengths: tuple[Length, ...]
    last_k: int
    stride: int
    tokens: int
    train_length: Length

    @property
    def has_control(self) -> bool:
        """Whether there is a context to cut: `control` is on and a length exceeds the training length."""
        return self.control and self.lengths[-1] > self.train_length


class ValidationConfig(Config):
    """Perplexity during training: the protocol `blocks` at the training length."""

    interval: int = Field(default=1000, ge=0)
    """Steps between two validations; 0 means never."""
    tokens: int | None = Field(default=None, gt=0)
    """Scored tokens, a multiple of the training length; by default the least such number from 65536 on."""

    def tokens_for(self, train_length: int) -> int:
        """How many tokens are scored with a training length; `ConfigError` where it does not divide them."""
        tokens = self.tokens or least_multiple((train_length,), 65_536)
        if tokens % train_length:
            raise ConfigError(_not_a_multiple("validation.tokens", tokens, (train_length,)))
        return tokens


def least_multiple(lengths: tuple[int, ...], at_least: int) -> int:
    """The least number from `at_least` on that each of the lengths divides."""
    common = math.lcm(*lengths)
    return -(-at_least // common) * common


def _mistakes(evaluation: ResolvedEvaluation) -> Iterator[Mistake]:
    lengths, last_k, train_length = evaluation.lengths, evaluation.last_k, evaluation.train_length
    if {"blocks", "per-position"}.intersection(evaluation.protocols) and evaluation.tokens % math.lcm(*lengths):
        yield _not_a_multiple("evaluation.tokens", evaluation.tokens, lengths)
    elif evaluation.tokens < lengths[-1] and "sliding" in evaluation.protocols:
        yield Mistake("evaluation.tokens", evaluation.tokens, f"must hold a window of the longest length {lengths[-1]}",
                      f"set it to {lengths[-1]} or more")  # fmt: skip
    for protocol, key, value in (("last-k", "last_k", last_k), ("sliding", "stride", evaluation.stride)):
        if protocol not in evaluation.protocols:
            continue
        if value > lengths[0]:
            yield Mistake(
                f"evaluation.{key}",
                value,
                f"must not exceed the shortest length {lengths[0]}",
                f"set it to {lengths[0]} or less, or drop the lengths below {value}",
            )
        elif evaluation.has_control and value > train_length:
            yield Mistake(
                f"evaluation.{key}",
                value,
                f"must not exceed the training length {train_length}, to which the control cuts the context",
                f"set it to {train_length} or less, or set evaluation.control to false",
            )


def _not_a_multiple(key: str, tokens: int, lengths: tuple[int, ...]) -> Mistake:
    common = math.lcm(*lengths)
    near = [str(count) for count in (tokens // common * common, least_multiple(lengths, tokens)) if count]
    fitting = [length for length in lengths if tokens % length == 0]
    other = f", or keep to the lengths that divide it: {fitting}" if fitting else ""
    return Mistake(
        key,
        tokens,
        f"must be a multiple of {common}, so that each of the lengths {list(lengths)} scores the same tokens",
        f"set it to {' or '.join(near)}{other}",
    )
