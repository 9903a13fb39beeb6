"""Measures perplexity at many lengths, and during training at one: a scored model and a stream in, measurements out."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_mep.attention.work import Work
from megatron_mep.evaluation.breakdown import by_document, by_position
from megatron_mep.evaluation.config import EvaluationConfig, ValidationConfig
from megatron_mep.evaluation.perplexity import DataParallel, Score, Scored, Stream, score_plan
from megatron_mep.evaluation.plan import Plan, plans, validation_plan
from megatron_mep.evaluation.rows import Measurement, perplexity_of


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is, in input tokens forwarded by all ranks."""

    plan: Plan
    """What is being measured."""
    done_tokens: int
    all_tokens: int
    tokens_per_s: float
    """Over everything done so far."""
    left_s: float
    """Time left at that speed; too little where the windows still to come are longer and cost more a token."""


AttentionWork = Callable[[], Work]
Report = Callable[[Progress], None]
Clock = Callable[[], float]
IsDone = Callable[[Plan], bool]


def silent(_: Progress) -> None:
    """Reports nothing."""


def never(_: Plan) -> bool:
    """Nothing is done yet."""
    return False


def evaluate_lengths(
    score: Score,
    stream: Stream,
    config: EvaluationConfig,
    train_length: int,
    *,
    data_parallel: DataParallel | None = None,
    token_bytes: NDArray[np.integer] | None = None,
    end_of_document: int | None = None,
    is_done: IsDone = never,
    report: Report = silent,
    attention_work: AttentionWork = Work,
    clock: Clock = time.perf_counter,
) -> Iterator[Measurement]:
    """Every measurement of an evaluation, as each is done; each rank must take them all.

    What the section or the stream's size rules out is a `ConfigError` before the first is asked for.

    Args:
        score: The model.
        stream: Held-out token ids; `last-k` takes spans from all of it, the other protocols its beginning.
        config: The run file's section.
        train_length: The model's training length, to which the control cuts the context.
        data_parallel: This rank's place among several; by default it is alone.
        token_bytes: UTF-8 bytes that each token id stands for, `[V]`; bits per byte are not known without.
        end_of_document: The token that ends each document; nothing is said by document without.
        is_done: Whether a plan's measurement is known and left out; the same on all ranks.
        report: Hears of the progress after each batch.
        attention_work: What attention has computed and dropped since the last call; called alike by all ranks.
        clock: Seconds.
    """
    planned = [plan for plan in plans(config.resolved(train_length), len(stream)) if not is_done(plan)]
    progress = _Meter(sum(plan.num_inputs for plan in planned), report, clock)
    told_of = Text(token_bytes, None if end_of_document is None else np.flatnonzero(stream == end_of_document))
    place = data_parallel or DataParallel()
    return (
        _measure(plan, score, stream, config.batch_tokens, place, told_of, progress, attention_work) for plan in planned
    )


def validate(
    score: Score,
    stream: Stream,
    config: ValidationConfig,
    train_length: int,
    batch_tokens: int,
    *,
    data_parallel: DataParallel | None = None,
    token_bytes: NDArray[np.integer] | None = None,
    attention_work: AttentionWork = Work,
    clock: Clock = time.perf_counter,
) -> Measurement:
    """The measurement of a validation during training: what `evaluate_lengths` finds in `blocks` at that length."""
    plan = validation_plan(config, train_length, len(stream))
    progress = _Meter(plan.num_inputs, silent, clock)
    place = data_parallel or DataParallel()
    return _measure(plan, score, stream, batch_tokens, place, Text(token_bytes), progress, attention_work)


class _Meter:
    """Counts forwarded tokens against the clock."""

    def __init__(self, all_tokens: int, report: Report, clock: Clock) -> None:
        self.all_tokens = all_tokens
        self.done_tokens = 0
        self.clock = clock
        self.start_s = clock()
        self.report = report

    def add(self, plan: Plan, tokens: int) -> None:
        self.done_tokens += tokens
        # a clock too coarse to see the first batch must not divide by zero
        speed = self.done_tokens / max(self.clock() - self.start_s, 1e-9)
        left_s = (self.all_tokens - self.done_tokens) / speed
        self.report(Progress(plan, self.done_tokens, self.all_tokens, speed, left_s))


def _measure(
    plan: Plan,
    score: Score,
    stream: Stream,
    batch_tokens: int,
    data_parallel: DataParallel,
    text: "Text",
    progress: _Meter,
    attention_work: AttentionWork,
) -> Measurement:
    # what went before is no part of this measurement
    attention_work()
    start_s = progress.clock()
    scored = score_plan(plan, stream, score, batch_tokens, data_parallel, lambda tokens: progress.add(plan, tokens))
    seconds = progress.clock() - start_s
    return measurement(plan, scored, text, seconds, attention_work())


@dataclass(frozen=True, eq=False)
class Text:
    """What is known of a stream besides its tokens."""

    token_bytes: NDArray[np.integer] | None = None
    """UTF-8 bytes that each token id stands for, `[V]`."""
    document_ends: NDArray[np.integer] | None = None
    """Positions of the tokens that end a document, ascending."""


def measurement(plan: Plan, scored: Scored, text: Text, seconds: float, work: Work) -> Measurement:
    """The measurement that a plan's scored tokens add up to."""
    non_finite = int(np.count_nonzero(~np.isfinite(scored.nll)))
    total = None if non_finite else float(scored.nll.sum())
    num_bytes = None if text.token_bytes is None else int(text.token_bytes[scored.ids].sum(dtype=np.int64))
    nll = None if total is None else total / len(scored.nll)
    return Measurement(
        protocol=plan.protocol,
        length=plan.length,
        context=plan.context,
        window=plan.window,
        stride=plan.stride,
        last_k=plan.last_k,
        scored_tokens=len(scored.nll),
        scored_hash=scored.hash,
        scored_bytes=num_bytes,
        nll=nll,
        perplexity=None if nll is None else perplexity_of(nll),
        bits_per_byte=None if total is None or not num_bytes else total / math.log(2) / num_bytes,
        non_finite=non_finite,
        **by_document(scored, text.document_ends),
        **by_position(plan, scored),
        seconds=seconds,
        tokens_per_s=plan.num_inputs / max(seconds, 1e-9),
        attention_kept=work.kept if work.causal_pairs else None,
        attention_dropped=work.dropped if work.causal_pairs else None,
    )
