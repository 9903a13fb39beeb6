"""Which windows of a token stream are forwarded, and which of their labels are scored, for each protocol and length.

The stream is documents joined end to end. Position p is the stream's p-th token, from 0. A window of L inputs that
starts at s reads tokens s ... s + L; its labels are s + 1 ... s + L, and a label at p is predicted from p - s tokens of
context. Whatever the length, one protocol scores one set of positions, each once:

`blocks`   windows of L side by side, all labels scored: positions 1 ... N. Contexts are 1 ... L tokens.
`per-position`   the windows of `blocks`; losses are averaged by the place of the label in its window besides.
`sliding`  windows of L, a stride s apart, the first scored whole, each later one from where its predecessor ended:
           positions 1 ... N. Contexts are 1 ... L tokens in the first window, L - s + 1 ... L in the others; with s = 1
           all that L allows. The last step is shorter where s does not divide N - L.
`last-k`   the windows of L that end at fixed positions, the last k labels scored. Contexts are L - k + 1 ... L tokens.
cut        the blocks of L with no context above W tokens and none from before the block: windows of W slide through
           each, W // 2 apart. Again positions 1 ... N; beyond a block's first W every context is W - W // 2 + 1 ... W.

In `sliding` and `last-k` the control is the row at length W itself: it scores the same positions with at most W tokens
of context. It needs s, k <= W, and k <= W // 2 for the same least context as in the cut blocks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.evaluation.config import Protocol, ResolvedEvaluation, ValidationConfig

Context = Literal["full", "cut"]
Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plan:
    """The forward passes behind one result row: windows of one size, of which the last labels are scored."""

    protocol: Protocol
    length: int
    """L: the inputs of a block or window as the protocol defines it."""
    context: Context
    window: int
    """Inputs of a forwarded window: L, or W where the context is cut."""
    stride: int | None
    """Distance between the starts of neighbouring windows; `None` where they follow no grid."""
    starts: Positions
    """Position of each window's first input, ascending, `[windows]`."""
    num_scored: Positions
    """How many labels at the end of each window are scored, `[windows]`."""
    last_k: int | None = None
    position_ends: tuple[int, ...] | None = None
    """The last position in a window, from 1, of each range that has a loss of its own; `None` where none has."""

    @property
    def num_inputs(self) -> int:
        """Input tokens of all windows together: the plan's cost in forwarded tokens."""
        return len(self.starts) * self.window

    @property
    def scored_positions(self) -> Positions:
        """The positions that are scored, ascending, `[N]`."""
        stops = self.starts + self.window + 1
        spans = [np.arange(stop - num, stop) for stop, num in zip(stops, self.num_scored, strict=True)]
        return np.concatenate(spans).astype(np.int64)

    @property
    def contexts(self) -> Positions:
        """Tokens of context of each scored position, `[N]`: the place of a label in its window, from 1."""
        return self.scored_positions - np.repeat(self.starts, self.num_scored)


def plans(evaluation: ResolvedEvaluation, num_stream_tokens: int) -> list[Plan]:
    """Every plan of an evaluation, by protocol and ascending length; a stream that is too short is a `ConfigError`."""
    mistakes = list(_shortfalls(evaluation, num_stream_tokens))
    if mistakes:
        raise ConfigError(mistakes)
    lengths, window = evaluation.lengths, evaluation.train_length
    planned: list[Plan] = []
    with_control = sorted({*lengths, window}) if evaluation.has_control else lengths
    for protocol in evaluation.protocols:
        if protocol == "blocks":
            for length in lengths:
                planned.append(blocks(length, evaluation.tokens))
                if evaluation.control and length > window:
                    planned.append(cut_blocks(length, evaluation.tokens, window))
        elif protocol == "per-position":
            planned += [per_position(length, evaluation.tokens, evaluation.position_bins) for length in lengths]
        elif protocol == "sliding":
            planned += [sliding(length, evaluation.tokens, evaluation.stride) for length in with_control]
        else:
            ends = span_ends(lengths[-1], evaluation.last_k, evaluation.spans, num_stream_tokens)
            planned += [last_k(length, ends, evaluation.last_k) for length in with_control]
    return planned


def validation_plan(config: ValidationConfig, train_length: int, num_stream_tokens: int) -> Plan:
    """The plan of a validation during training: blocks, by position in ranges of doubling length besides.

    A stream that is too short is a `ConfigError`.
    """
    tokens = config.tokens_for(train_length)
    if tokens >= num_stream_tokens:
        raise ConfigError(_too_few_for_blocks("validation.tokens", tokens, (train_length,), num_stream_tokens))
    return replace(blocks(train_length, tokens), position_ends=doubling_ends(train_length))


def blocks(length: int, tokens: int) -> Plan:
    """Disjoint windows that score positions 1 ... `tokens`."""
    assert tokens % length == 0, "blocks score whole windows"
    starts = np.arange(0, tokens, length)
    return Plan("blocks", length, "full", length, length, starts, np.full(len(starts), length))


def per_position(length: int, tokens: int, bins: int) -> Plan:
    """The windows of `blocks`, with losses by position."""
    return replace(blocks(length, tokens), protocol="per-position", position_ends=even_ends(length, bins))


def even_ends(length: int, bins: int) -> tuple[int, ...]:
    """The last of each range of positions 1 ... `length`, which `bins` ranges of like length share, or one each."""
    bins = min(bins, length)
    return tuple(number * length // bins for number in range(1, bins + 1))


def doubling_ends(length: int) -> tuple[int, ...]:
    """The same of ranges that end at 1, 2, 4, 8 ... and at `length`: a loss falls with the logarithm of its context."""
    return (*(2**power for power in range((length - 1).bit_length())), length)


def sliding(length: int, tokens: int, stride: int) -> Plan:
    """Windows of `length`, `stride` apart, that score positions 1 ... `tokens`."""
    assert stride <= length <= tokens, "no label is left out between windows"
    starts, num_scored = _slide(length, tokens, stride)
    return Plan("sliding", length, "full", length, stride, starts, num_scored)


def cut_blocks(length: int, tokens: int, window: int) -> Plan:
    """The blocks of `length`, each scored in chunks of `window` inputs: positions 1 ... `tokens`."""
    assert tokens % length == 0, "blocks score whole windows"
    assert 1 < window < length, "cut blocks are longer than their window"
    stride = window // 2
    starts_in_block, num_scored = _slide(window, length, stride)
    block_starts = np.arange(0, tokens, length)
    starts = (block_starts[:, None] + starts_in_block).ravel()
    return Plan("blocks", length, "cut", window, stride, starts, np.tile(num_scored, len(block_starts)))


def last_k(length: int, ends: Positions, k: int) -> Plan:
    """Windows of `length` inputs whose last labels stand at `ends`; the last k labels of each are scored."""
    assert k <= length <= ends[0], "a window holds its scored labels and starts inside the stream"
    return Plan("last-k", length, "full", length, None, ends - length, np.full(len(ends), k), last_k=k)


def span_ends(longest: int, k: int, spans: int, num_stream_tokens: int) -> Positions:
    """Positions at which the spans of `last-k` end: from `longest` to the stream's last, evenly, at least k apart."""
    room = num_stream_tokens - 1 - longest
    assert room >= (spans - 1) * k, "spans do not overlap"
    return longest + np.arange(spans) * room // max(1, spans - 1)


def _slide(window: int, tokens: int, stride: int) -> tuple[Positions, Positions]:
    """Starts of the windows that slide over positions 1 ... `tokens`, and how many labels each scores."""
    ends = np.append(np.arange(window, tokens, stride), tokens)
    return ends - window, np.diff(ends, prepend=0)


def _shortfalls(evaluation: ResolvedEvaluation, num_stream_tokens: int) -> Iterator[Mistake]:
    lengths, spans, k = evaluation.lengths, evaluation.spans, evaluation.last_k
    if set(evaluation.protocols) != {"last-k"} and evaluation.tokens >= num_stream_tokens:
        yield _too_few_for_blocks("evaluation.tokens", evaluation.tokens, lengths, num_stream_tokens)
    room = num_stream_tokens - 1 - lengths[-1]
    if "last-k" in evaluation.protocols and room < (spans - 1) * k:
        needed = lengths[-1] + (spans - 1) * k + 1
        rule = f"needs a stream of {needed} tokens (spans of {k} from {lengths[-1]} on)"
        remedy = f"set it to {room // k + 1}" if room >= 0 else _shorter_lengths(num_stream_tokens)
        yield _too_short("evaluation.spans", spans, rule, num_stream_tokens, remedy)


def _too_few_for_blocks(key: str, tokens: int, lengths: tuple[int, ...], num_stream_tokens: int) -> Mistake:
    common = math.lcm(*lengths)
    fitting = max(0, num_stream_tokens - 1) // common * common
    remedy = f"set it to {fitting}" if fitting else _shorter_lengths(num_stream_tokens)
    return _too_short(key, tokens, f"needs a stream of {tokens + 1} tokens", num_stream_tokens, remedy)


def _too_short(key: str, value: int, rule: str, num_stream_tokens: int, remedy: str) -> Mistake:
    return Mistake(key, value, f"{rule}, and this one has {num_stream_tokens}", f"{remedy}, or prepare more text")


def _shorter_lengths(num_stream_tokens: int) -> str:
    return f"set the lengths to less than {num_stream_tokens}"
