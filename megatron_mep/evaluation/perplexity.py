"""Runs a plan: forwards its windows on the data-parallel ranks and keeps the NLL of every scored token, in fp64."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_mep.evaluation.plan import Plan, Positions

Stream = NDArray[np.integer]
"""The token ids of held-out text, 1-D; a memory map will do."""
Score = Callable[[Tensor], Tensor]
"""From tokens `[B, L + 1]` int64 to `[B, L]`: the NLL in nats of each token after a row's first, given those before."""


def alone(ledger: Tensor) -> Tensor:
    """The sum over a single rank."""
    return ledger


@dataclass(frozen=True)
class DataParallel:
    """This rank's place among those that share the windows, and how their results come together."""

    rank: int = 0
    world: int = 1
    sum_over_ranks: Callable[[Tensor], Tensor] = alone
    """From an fp64 tensor on the CPU to its sum over the ranks; every rank calls it once a plan."""


@dataclass(frozen=True, eq=False)
class Scored:
    """The scored tokens of a plan in the stream's order, whichever rank and batch they came from."""

    positions: Positions
    """`[N]`, ascending."""
    ids: NDArray[np.int64]
    """`[N]`, as they were forwarded."""
    nll: NDArray[np.float64]
    """`[N]` in nats; infinite or NaN where the model said so."""

    @property
    def hash(self) -> str:
        """SHA-256 in hexadecimal of all positions, then all ids, each as little-endian int64."""
        digest = hashlib.sha256(self.positions.astype("<i8").tobytes())
        digest.update(self.ids.astype("<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Batch:
    """What one rank forwards in one round: B windows, the same number on every rank and in every round."""

    windows: NDArray[np.int64]
    """Which windows of the plan, `[B]`; the last one again where there are not enough to fill the round."""
    counts: NDArray[np.bool_]
    """False for the windows that only fill up, `[B]`."""
    round_windows: int
    """Windows that count in this round, over all ranks."""


def score_plan(
    plan: Plan,
    stream: Stream,
    score: Score,
    batch_tokens: int,
    data_parallel: DataParallel,
    forwarded: Callable[[int], None],
) -> Scored:
    """What a plan's windows score, the same on every rank.

    All ranks call `score` equally often with one shape, as a model whose parameters are gathered over ranks demands.
    `forwarded` hears after each round how many input tokens all ranks together got through.
    """
    planned = plan.scored_positions
    assert bool(np.all(np.diff(planned) > 0)), "a plan scores no token twice"
    # How often a token was scored, its position, id and NLL: each is one rank's, so the sum only brings them together.
    ledger = np.zeros((4, len(planned)))
    for batch in batches(len(plan.starts), max(1, batch_tokens // plan.window), data_parallel):
        starts = plan.starts[batch.windows][:, None]  # [B, 1]
        num_scored = np.where(batch.counts, plan.num_scored[batch.windows], 0)[:, None]
        tokens = np.stack([stream[start : start + plan.window + 1] for start in starts.ravel()]).astype(np.int64)
        counted = np.arange(plan.window) >= plan.window - num_scored  # [B, L]
        positions = (starts + 1 + np.arange(plan.window))[counted]
        places = np.searchsorted(planned, positions)
        np.add.at(ledger[0], places, 1)
        ledger[1, places] += positions
        ledger[2, places] += tokens[:, 1:][counted]
        ledger[3, places] += _scores(score, torch.from_numpy(tokens))[counted]
        forwarded(batch.round_windows * plan.window)
    times, positions, ids, nll = data_parallel.sum_over_ranks(torch.from_numpy(ledger)).numpy()
    assert bool(np.all(times == 1)), "the ranks together score each planned token once"
    return Scored(positions.astype(np.int64), ids.astype(np.int64), nll)


def batches(num_windows: int, most: int, data_parallel: DataParallel) -> Iterator[Batch]:
    """This rank's batches of at most `most` windows, as even in size as the number of rounds allows."""
    world = data_parallel.world
    rounds = -(-num_windows // (world * most))
    size = -(-num_windows // (world * rounds))
    for start in range(0, rounds * world * size, world * size):
        indices = start + data_parallel.rank * size + np.arange(size)
        yield Batch(np.minimum(indices, num_windows - 1), indices < num_windows, min(world * size, num_windows - start))


def _scores(score: Score, tokens: Tensor) -> NDArray[np.float64]:
    with torch.no_grad():
        nll = score(tokens)
    rows, inputs = tokens.shape[0], tokens.shape[1] - 1
    assert nll.shape == (rows, inputs), f"a score has shape {(rows, inputs)}, not {tuple(nll.shape)}"
    scores: NDArray[np.float64] = nll.detach().to("cpu", torch.float64).numpy()
    return scores
