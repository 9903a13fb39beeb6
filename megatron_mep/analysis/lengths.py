"""Looks at a model at many lengths: a model that can be observed and a stream in, analyses out."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_mep.analysis.attention_mass import AttentionMass
from megatron_mep.analysis.config import AnalysisConfig
from megatron_mep.analysis.distances import distance_ends, in_ranges
from megatron_mep.analysis.receptive_field import cumulative_shares, field_of
from megatron_mep.analysis.rows import Analysis
from megatron_mep.attention.scoring import Scoring
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.evaluation.perplexity import DataParallel, Scored, Stream, batches
from megatron_mep.evaluation.plan import Positions, span_ends

Hear = Callable[[int, Scoring], None]
"""Told the index of a layer, from 0, and what its scores are made of."""
Observe = Callable[[Tensor, Hear], Tensor]
"""From tokens `[B, L + 1]` to `[B, L]` fp64: the norm of the gradient of the last one's loss with respect to the
embedding of each before it. Every layer is told of.
"""


@dataclass(frozen=True)
class Ranks:
    """How what several ranks find comes together."""

    data_parallel: DataParallel
    of_all_heads: Callable[[Tensor], Tensor]
    """From `[layers, heads of this rank, ...]` to the same of all heads."""
    came_on: Callable[[], None]
    """Told of every layer that was looked at."""


def analyses(
    observe: Observe,
    stream: Stream,
    config: AnalysisConfig,
    train_length: int,
    ranks: Ranks,
    is_done: Callable[[int, str], bool] = lambda _length, _hash: False,
) -> Iterator[Analysis]:
    """The analysis of each length, as each is done; a stream that is too short is a `ConfigError` before.

    All ranks take all of them, and call `observe` equally often with one shape. `is_done` is asked of a length and the
    hash of what is scored, and must be the same on all ranks; what it knows is left out.
    """
    lengths = config.lengths_of(train_length)
    room = len(stream) - lengths[-1] - config.windows
    if room < 0:
        rule = f"must leave room in the held-out text of {len(stream)} tokens for {config.windows} windows"
        fitting = len(stream) - config.windows
        remedy = f"set lengths of at most {fitting}, or prepare more text" if fitting > 1 else "prepare more text"
        raise ConfigError(Mistake("analysis.lengths", list(lengths), rule, remedy))
    ends = span_ends(lengths[-1], 1, config.windows, len(stream))
    scored = Scored(ends, np.asarray(stream[ends], np.int64), np.empty(0)).hash
    return (
        _analysis(observe, stream, config, length, ends, scored, ranks)
        for length in lengths
        if not is_done(length, scored)
    )


def is_among(rows: Iterable[Analysis], length: int, scored_hash: str, config: AnalysisConfig) -> bool:
    """Whether one of the rows of a model is what an analysis at a length would find."""
    way = (length, scored_hash, config.share)
    return any(way == (row.length, row.scored_hash, row.receptive_field_share) for row in rows)


def _analysis(
    observe: Observe,
    stream: Stream,
    config: AnalysisConfig,
    length: int,
    ends: Positions,
    scored_hash: str,
    ranks: Ranks,
) -> Analysis:
    start_s = time.perf_counter()
    attention, place = AttentionMass(length), ranks.data_parallel
    # of each window, the share of the gradient up to each distance
    shares = np.zeros((len(ends), length))
    for batch in batches(len(ends), max(1, config.batch_tokens // length), place):
        tokens = np.stack([stream[end - length : end + 1] for end in ends[batch.windows]]).astype(np.int64)
        counts = torch.from_numpy(batch.counts)
        norms = observe(torch.from_numpy(tokens), _adding_to(attention, counts, ranks.came_on)).numpy()
        shares[batch.windows[batch.counts]] = cumulative_shares(norms)[batch.counts]
    shares = place.sum_over_ranks(torch.from_numpy(shares)).numpy()
    mass = ranks.of_all_heads(place.sum_over_ranks(attention.total)).numpy() / (len(ends) * length)
    return Analysis(
        length=length,
        num_windows=len(ends),
        scored_tokens=len(ends),
        scored_hash=scored_hash,
        distance_ends=distance_ends(length),
        **_attention(mass),
        **_gradient(shares, config.share),
        seconds=time.perf_counter() - start_s,
    )


def _adding_to(attention: AttentionMass, counts: Tensor, came_on: Callable[[], None]) -> Hear:
    """What takes up the layers of a batch whose samples count where `counts` says so."""

    def hear(index: int, scoring: Scoring) -> None:
        attention.add(index, scoring, counts)
        came_on()

    return hear


def _attention(mass: NDArray[np.float64]) -> dict[str, Any]:
    """The fields of a row that speak of attention, of its mean by distance `[layers, H, length]`."""
    if not np.isfinite(mass).all():
        return {"attention_mass": None, "attention_distance": None}
    length = mass.shape[-1]
    return {
        "attention_mass": in_ranges(mass, distance_ends(length)).tolist(),
        "attention_distance": (mass @ np.arange(length)).tolist(),
    }


def _gradient(shares: NDArray[np.float64], share: float) -> dict[str, Any]:
    """Those that speak of gradients, of their cumulative shares `[windows, length]`."""
    told: dict[str, Any] = {"receptive_field_share": share}
    if not np.isfinite(shares).all():
        return told | dict.fromkeys(("gradient_share", "receptive_field", "receptive_field_windows"))
    mean, length = shares.mean(axis=0), shares.shape[-1]
    return told | {
        "gradient_share": mean[list(distance_ends(length))].tolist(),
        "receptive_field": int(field_of(mean, share)),
        "receptive_field_windows": tuple(field_of(shares, share).tolist()),
    }
