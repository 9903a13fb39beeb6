"""A study's outcome: of each encoding mean and spread over seeds, and what tells it apart from the baseline."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from megatron_mep.config.base import Config
from megatron_mep.evaluation.bootstrap import resampled_means
from megatron_mep.evaluation.rows import ResultRow
from megatron_mep.studies.arms import Arm, Study
from megatron_mep.studies.state import Way

RESAMPLES = 10_000
"""Draws of a bootstrap: enough for the tails that many comparisons at once ask for."""


class Difference(Config):
    """An encoding less the baseline, in nats per token, paired by seed and document; below 0 it is the better one."""

    mean: float
    low: float
    high: float
    """Ends of the interval at the study's level, by bootstrap over seeds and documents."""
    significant: bool
    """Whether 0 is outside of the interval at the level that as many comparisons as stand in a column ask for."""
    num_seeds: int
    num_documents: int


class Cell(Config):
    """An encoding in one way of scoring, over its seeds."""

    encoding: str
    size: str | None
    train_length: int
    protocol: str
    length: int
    context: str
    window: int
    stride: int | None
    last_k: int | None
    scored_tokens: int
    scored_hash: str
    seeds: tuple[int, ...]
    perplexities: tuple[float | None, ...]
    """Of each seed; null where it is not finite."""
    mean: float | None
    """Of the perplexities; null where one of them is not finite."""
    deviation: float | None
    """Standard deviation over seeds, of a sample; null for a single one."""
    bits_per_byte: float | None
    """Mean over seeds."""
    against_baseline: Difference | None
    """Null for the baseline itself, and where nothing can be paired."""


class Summary(Config):
    """All cells of a study, and what it takes to read them."""

    study: str
    baseline: str
    confidence: float
    resamples: int = RESAMPLES
    comparisons_at_once: int
    """Encodings that are compared with the baseline in one column: by so many the error of `significant` is divided."""
    seeds: tuple[int, ...]
    missing: tuple[str, ...]
    """Arms that are not measured yet, or not wholly."""
    version: str
    cells: tuple[Cell, ...]


Scores = Sequence[tuple[Arm, ResultRow]]
"""The rows of one encoding in one way of scoring, a seed each."""


def summary_of(study: Study, rows: Mapping[str, Mapping[Way, ResultRow]], missing: Sequence[str]) -> Summary:
    """The summary of the rows of each arm, by its name; ways, and encodings in each, stand in the study's order."""
    config = study.config
    comparisons = max(1, len(config.encodings) - 1)
    cells: list[Cell] = []
    measured = [arm for arm in study.arms if rows.get(arm.name)]
    for _, arms in groupby(measured, key=lambda arm: (arm.size, arm.train_length)):
        of_group = list(arms)
        for way in dict.fromkeys(way for arm in of_group for way in rows[arm.name]):
            by_encoding = {
                label: [
                    (arm, rows[arm.name][way]) for arm in of_group if arm.encoding == label and way in rows[arm.name]
                ]
                for label in config.encodings
            }
            baseline = by_encoding[config.compared_with]
            for label, scores in by_encoding.items():
                if scores:
                    others = None if label == config.compared_with else baseline
                    cells.append(_cell(label, scores, others, config.confidence, comparisons))
    return Summary(
        study=config.study,
        baseline=config.compared_with,
        confidence=config.confidence,
        comparisons_at_once=comparisons,
        seeds=config.seeds,
        missing=tuple(missing),
        version=next((row.version for own in rows.values() for row in own.values()), "unknown"),
        cells=tuple(cells),
    )


def _cell(label: str, scores: Scores, baseline: Scores | None, confidence: float, comparisons: int) -> Cell:
    arm, row = scores[0]
    perplexities = [each.perplexity for _, each in scores]
    finite = [value for value in perplexities if value is not None]
    bits = [each.bits_per_byte for _, each in scores if each.bits_per_byte is not None]
    whole = len(finite) == len(scores)
    return Cell(
        encoding=label,
        size=arm.size,
        train_length=arm.train_length,
        **row.model_dump(
            include={
                *("protocol", "length", "context", "window", "stride", "last_k"),
                *("scored_tokens", "scored_hash"),
            }
        ),
        seeds=tuple(each.run.seed for each, _ in scores),
        perplexities=tuple(perplexities),
        mean=statistics.fmean(finite) if whole else None,
        deviation=statistics.stdev(finite) if whole and len(finite) > 1 else None,
        bits_per_byte=statistics.fmean(bits) if len(bits) == len(scores) else None,
        against_baseline=None if baseline is None else difference(scores, baseline, confidence, comparisons),
    )


def difference(scores: Scores, baseline: Scores, confidence: float, comparisons: int) -> Difference | None:
    """What an encoding's tokens cost more than the baseline's; `None` where no seed and two documents can be paired."""
    pairs = list(_pairs(scores, baseline))
    if not pairs or len(pairs[0][1]) < 2:
        return None
    sums = np.stack([own for own, _ in pairs])
    tokens = pairs[0][1]
    means = resampled_means(sums, tokens, RESAMPLES)
    low, high = _interval(means, confidence)
    strict_low, strict_high = _interval(means, 1 - (1 - confidence) / comparisons)
    return Difference(
        mean=float(sums.mean(axis=0).sum() / tokens.sum()),
        low=low,
        high=high,
        significant=not strict_low <= 0 <= strict_high,
        num_seeds=len(pairs),
        num_documents=len(tokens),
    )


def _pairs(scores: Scores, baseline: Scores) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Of each seed that both have: differences of documents' sums `[documents]`, and their tokens."""
    theirs = {arm.run.seed: row for arm, row in baseline}
    for arm, row in scores:
        other = theirs.get(arm.run.seed)
        if other is None or row.document_nll is None or other.document_nll is None:
            continue
        assert row.document_tokens is not None, "sums of documents come with their tokens"
        assert row.document_tokens == other.document_tokens, "the same scored tokens lie in the same documents"
        yield np.array(row.document_nll) - np.array(other.document_nll), np.array(row.document_tokens)


def _interval(means: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    assert math.isfinite(low), "only finite sums are paired"
    return float(low), float(high)
