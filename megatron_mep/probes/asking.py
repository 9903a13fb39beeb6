"""Asks a model all questions of a set, on the data-parallel ranks, and an oracle beside it."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.evaluation.perplexity import DataParallel
from megatron_mep.probes.config import Mode, ProbesConfig
from megatron_mep.probes.oracle import oracle
from megatron_mep.probes.rows import Answers
from megatron_mep.probes.scoring import Open, forced, found, greedy
from megatron_mep.probes.sets import SampleSet


@dataclass(frozen=True)
class Asked:
    """Mean outcomes over all samples of a set, shares from 0 to 1."""

    num_asked: int
    """Samples that were asked, over all ranks."""
    non_finite: int
    found: float
    exact: float
    accuracy: float
    rank: float
    reciprocal_rank: float
    nll: float


def answers_of(
    asked: SampleSet, model: Open, probes: ProbesConfig, tokenizer: Tokenizer, data_parallel: DataParallel
) -> Answers:
    """What a model answers, the same on every data-parallel rank, each of which asks a part of the samples."""
    modes = _modes(asked, probes)
    started_s = time.perf_counter()
    by_model = _ask(asked, model, modes, probes.batch_tokens, tokenizer, data_parallel)
    seconds = time.perf_counter() - started_s
    finder = oracle(asked.samples, tokenizer.vocab_size, tokenizer.eod)
    by_oracle = _ask(asked, finder, modes, probes.batch_tokens, tokenizer, data_parallel)
    best = [by_oracle.found] * ("greedy" in modes) + [by_oracle.exact] * ("forced" in modes)
    whole = by_model.non_finite == 0

    def score(mode: Mode, value: float) -> float | None:
        return value if whole and mode in modes else None

    return Answers(
        kind=asked.kind,
        task=asked.task.name,
        task_options=asked.options,
        length=asked.length,
        depth=asked.depth,
        num_samples=by_model.num_asked,
        samples_hash=asked.hash,
        prompt_tokens=max(len(sample.prompt) for sample in asked.samples),
        max_new_tokens=asked.max_new_tokens if "greedy" in modes else None,
        probe_seed=probes.seed,
        oracle=100 * min(best),
        found=score("greedy", 100 * by_model.found),
        exact=score("forced", 100 * by_model.exact),
        token_accuracy=score("forced", 100 * by_model.accuracy),
        mean_rank=score("forced", by_model.rank),
        mean_reciprocal_rank=score("forced", by_model.reciprocal_rank),
        nll=score("forced", by_model.nll),
        non_finite=by_model.non_finite,
        seconds=seconds,
    )


def is_answered(rows: Iterable[Answers], asked: SampleSet, probes: ProbesConfig) -> bool:
    """Whether one of the rows of a model has its answers to a set, in all modes that are asked for."""
    way = (asked.kind, asked.task.name, asked.options, asked.length, asked.depth, asked.hash)
    alike = [
        row for row in rows if way == (row.kind, row.task, row.task_options, row.length, row.depth, row.samples_hash)
    ]
    return any(set(_modes(asked, probes)) <= _modes_told(row) for row in alike)


def _modes(asked: SampleSet, probes: ProbesConfig) -> tuple[Mode, ...]:
    return probes.retrieval.modes if asked.kind == "retrieval" else ("forced",)


def _modes_told(row: Answers) -> set[Mode]:
    # where logits are not finite all scores are null, whatever was asked for
    greedy, forced = row.max_new_tokens is not None, row.exact is not None or row.non_finite > 0
    return {mode for mode, told in (("greedy", greedy), ("forced", forced)) if told}  # type: ignore[misc]


def _ask(
    asked: SampleSet,
    model: Open,
    modes: Sequence[Mode],
    batch_tokens: int,
    tokenizer: Tokenizer,
    data_parallel: DataParallel,
) -> Asked:
    own = asked.samples[data_parallel.rank :: data_parallel.world]
    # sums, not means: ranks may have different numbers of samples, or none
    ledger = np.zeros(8)
    ledger[0] = len(own)
    lost: set[int] = set()
    if "greedy" in modes:
        assert asked.max_new_tokens is not None, "what is generated has a limit"
        for place, written in enumerate(greedy(own, model, batch_tokens, asked.max_new_tokens, tokenizer.eod)):
            if written is None:
                lost.add(place)
            else:
                ledger[2] += found(own[place], written, tokenizer)
    if "forced" in modes:
        for place, outcome in enumerate(forced(own, model, batch_tokens)):
            if outcome is None:
                lost.add(place)
            else:
                ledger[3:] += (outcome.exact, outcome.accuracy, outcome.rank, outcome.reciprocal_rank, outcome.nll)
    ledger[1] = len(lost)
    num_asked, num_lost, *sums = data_parallel.sum_over_ranks(torch.from_numpy(ledger)).tolist()
    assert num_asked == len(asked.samples), "the ranks together ask each question once"
    return Asked(int(num_asked), int(num_lost), *(total / num_asked for total in sums))
