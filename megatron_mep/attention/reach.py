"""How far back blocks of queries must look: the rule that walks outwards from the diagonal.

Each block first attends to the keys nearest to it. The logsumexp L_i of that part is a lower bound of row i's whole,
and every score with a key before j is at most u_i(j). What the row then drops by leaving out all keys before j is at
most the share

    exp(u_i(j) - L_i) sum_{d > i - j} exp(b(d))

of its softmax. A block walks on until that is at most epsilon for each of its rows, in all samples.

Cauchy-Schwarz gives u_i(j) = scale |q_i| max_{t < j} |k_t|. So it does for keys less their mean m, since q_i k_t =
q_i m + q_i (k_t - m); the smaller counts. An attention sink, a key at the very beginning that is longer than all
others, would be in every maximum: where there is one, the first keys are computed for all blocks and left out of it.
"""

import math
from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.tiles import ALL, Tile, in_bands, row_tiles
from megatron_mep.attention.windows import kept_pairs, log_tails

NUM_NEAR = 64
"""Keys before a block that it attends to first."""
STEP = 32
"""Keys by which a block walks on."""
NEAR_BAND = 4
"""Blocks whose nearest keys are attended to at once, in all heads: as many as stay in the cache."""
BAND = 16
"""Blocks that walk equally far, since they are computed at once."""
NUM_SINKS = 32
"""Keys at the beginning that are computed for all blocks, where they hold a sink."""
SINK_FACTOR = 1.1
"""How much longer than all other keys a sink is."""
WORTH_CENTRING = 0.5
"""Nats that centring the keys must promise before it is done."""
MOST_KEPT = 0.5
"""Share of pairs, kept were all scores zero, from which on looking for more to drop costs more than it saves."""
ROUNDING = 1e-3
ROUNDINGS = 256
"""Nats kept back for rounding: a constant, and so many roundings of the largest number that the rule adds up: a length
and a product are sums over up to so many dimensions of a head."""


class Reach:
    """Decides the tiles of one attention, of query `[B, H, Q, D]` and key `[B, G, K, D]`, in two rounds."""

    def __init__(self, query: Tensor, key: Tensor, tails: Tensor, scale: float, epsilon: float, num_rows: int) -> None:
        self._num_rows, self._log_epsilon = num_rows, math.log(epsilon)
        self._group_size = query.size(1) // key.size(1)
        # the first block may have fewer rows, and then there are none before it
        tails = tails.to(torch.promote_types(query.dtype, torch.float32))
        self._tails = torch.cat((tails[:, :1].expand(-1, num_rows), tails), dim=1)
        self._bound = _ScoreBound(query, key, scale, num_rows)
        self._near = [
            _near_tile(block, self._bound.num_sinks) for block in _blocks(query.size(2), key.size(2), num_rows)
        ]
        self._start = torch.tensor([near.keys.start for near in self._near])
        self.dropped = 0.0
        """The largest share that any row drops."""

    @classmethod
    def of(
        cls, query: Tensor, key: Tensor, bias: Tensor, scale: float, epsilon: float, num_rows: int
    ) -> "Reach | None":
        """None where too few keys would be dropped to be worth it, even if all scores were zero."""
        num_queries, num_keys = query.size(2), key.size(2)
        tails = log_tails(bias[:, :num_keys])
        windows = 1 + (tails[:, 1:] - tails[:, :1] > math.log(epsilon)).sum(1)
        kept = kept_pairs(windows, num_queries, num_keys).sum()
        most = MOST_KEPT * kept_pairs(windows.new_full(windows.shape, num_keys), num_queries, num_keys).sum()
        return cls(query, key, tails, scale, epsilon, num_rows) if kept <= most else None

    def near_tiles(self) -> Iterator[Tile]:
        """The first round: blocks of queries and the keys nearest to them."""
        return in_bands(self._near, NEAR_BAND)

    def far_tiles(self, logsumexp: Tensor) -> Iterator[Tile]:
        """The second round: what must be looked at besides, given the `[B, H, Q]` logsumexp of the first."""
        yield from self._sink_tiles()
        first_keys = self._first_keys(logsumexp)
        whole = (first_keys == self._bound.num_sinks) & (first_keys < self._start)
        for near, heads_of_block in zip(self._near, whole.T.tolist(), strict=True):
            for heads in _runs(heads_of_block, self._group_size):
                yield near._replace(keys=slice(self._bound.num_sinks, near.keys.start), heads=heads)
        for head, (first_of_block, is_whole) in enumerate(zip(first_keys.tolist(), whole.tolist(), strict=True)):
            far = (
                near._replace(keys=slice(first, near.keys.start), heads=slice(head, head + 1))
                for near, first, done in zip(self._near, first_of_block, is_whole, strict=True)
                if first < near.keys.start and not done
            )
            yield from in_bands(far, BAND)

    def _sink_tiles(self) -> Iterator[Tile]:
        """The sinks, for all blocks whose near tile does not hold them."""
        num_sinks = self._bound.num_sinks
        for near in self._near:
            if near.keys.start and num_sinks:
                yield near._replace(keys=slice(0, num_sinks))

    def _first_keys(self, logsumexp: Tensor) -> Tensor:
        """The first key that each head of each block looks at, `[H, blocks]`, by bisection: the bound falls with it."""
        most = (self._start - self._bound.num_sinks).clamp(min=0)
        low = torch.zeros(logsumexp.size(1), len(self._near), dtype=torch.int64)
        high = -(-most // STEP) + low
        by_block = _by_block(logsumexp, self._num_rows, torch.inf)
        finite = self._tails[self._tails.isfinite()]
        largest = self._bound.largest + float(logsumexp.abs().amax()) + float(finite.abs().amax())
        slack = ROUNDING + ROUNDINGS * torch.finfo(logsumexp.dtype).eps * largest
        while bool((low < high).any()):
            middle = (low + high) // 2
            enough = self._log_dropped(self._key_at(middle), by_block) + slack <= self._log_epsilon
            low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
        first = self._key_at(_farthest_of_band(high))
        self.dropped = math.exp(float(self._log_dropped(first, by_block).max()) + slack)
        return first

    def _key_at(self, steps: Tensor) -> Tensor:
        """The key that many steps before a block's near tile, `[H, blocks]`; the first after the sinks at the most."""
        return torch.minimum(self._start, (self._start - steps * STEP).clamp(min=self._bound.num_sinks))

    def _log_dropped(self, first: Tensor, logsumexp: Tensor) -> Tensor:
        """The logarithm of what a block drops at most by looking at no key before `first`: `[H, blocks]`."""
        # row r of a block has the tail from `nearest + r` on
        nearest = torch.tensor([near.position for near in self._near]) - self._num_rows + 2 - first
        heads = torch.arange(first.size(0))[:, None]
        tail = self._tails.unfold(1, self._num_rows, 1)[heads, nearest + self._num_rows]  # [H, blocks, rows]
        worst = (self._bound(first) - logsumexp + tail).amax(dim=(0, 3))
        return torch.where(first > self._bound.num_sinks, worst, -torch.inf)


class _ScoreBound:
    """The largest score that a query can have with the keys before a given one."""

    def __init__(self, query: Tensor, key: Tensor, scale: float, num_rows: int) -> None:
        dtype = torch.promote_types(query.dtype, torch.float32)
        length = torch.linalg.vector_norm(key, dim=-1, dtype=dtype)  # [B, G, K]
        self.num_sinks = num_sinks(length)
        self._group_size = query.size(1) // key.size(1)
        self._longest = running_max(length, self.num_sinks)
        reach = abs(scale) * torch.linalg.vector_norm(query, dim=-1, dtype=dtype)  # [B, H, Q]
        self._reach = _by_block(reach, num_rows, 0.0)
        self.largest = float(reach.amax() * length.amax())
        """Of all bounds."""
        mean = key.mean(2, keepdim=True, dtype=dtype)
        # no bound falls by more than twice that, be the keys centred or not
        most = reach.amax() * torch.linalg.vector_norm(mean, dim=-1).amax()
        self._centred = self._along = None
        if most > WORTH_CENTRING:
            # |k - m|^2 without a copy of the keys, and what its rounding may hide
            square = length.square()
            # elementwise: a product of matrices may be computed in bf16, under autocast for one
            centred = square - 2 * (key * mean).sum(-1) + mean.square().sum(-1)
            centred = (centred + ROUNDING * ROUNDING * square).clamp(min=0).sqrt()
            self._centred = running_max(centred, self.num_sinks)
            along = scale * (query.unflatten(1, (key.size(1), -1)) * mean[:, :, None]).sum(-1)
            self._along = _by_block(along.flatten(1, 2), num_rows, 0.0)

    def __call__(self, first: Tensor) -> Tensor:
        """Bounds `[B, H, blocks, rows]` of the scores of keys before `first [H, blocks]`, sinks aside."""
        heads = torch.arange(first.size(0))[:, None] // self._group_size
        bound = self._reach * self._longest[:, heads, first, None]
        if self._along is None or self._centred is None:
            return bound
        return torch.minimum(bound, self._along + self._reach * self._centred[:, heads, first, None])


def _blocks(num_queries: int, num_keys: int, num_rows: int) -> Iterator[Tile]:
    """Blocks of queries and all keys that they see; the first has what is left."""
    rest = num_queries % num_rows
    if rest:
        yield from row_tiles(rest, num_keys - num_queries + rest, rest)
    for tile in row_tiles(num_queries - rest, num_keys, num_rows):
        yield tile._replace(rows=slice(tile.rows.start + rest, tile.rows.stop + rest))


def _near_tile(block: Tile, num_sinks: int) -> Tile:
    """A block's keys from the nearest before it on, or all of them where no others than sinks come before."""
    first = block.position - block.num_rows + 1 - NUM_NEAR
    return block._replace(keys=slice(first if first > num_sinks else 0, block.keys.stop))


def _farthest_of_band(steps: Tensor) -> Tensor:
    """The most steps of each run of blocks that may be computed at once, for all of them: `[H, blocks]`."""
    num_blocks = steps.size(1)
    filled = functional.pad(steps, (0, -num_blocks % BAND)).unflatten(1, (-1, BAND))
    return filled.amax(-1).repeat_interleave(BAND, dim=1)[:, :num_blocks]


def num_sinks(length: Tensor) -> int:
    """How many keys at the beginning are computed for all blocks, given the lengths `[B, G, K]` of all."""
    if length.size(-1) <= NUM_SINKS:
        return 0
    sinks, others = length[..., :NUM_SINKS].amax(-1), length[..., NUM_SINKS:].amax(-1)
    return NUM_SINKS if bool((sinks > SINK_FACTOR * others).any()) else 0


def running_max(length: Tensor, num_sinks: int) -> Tensor:
    """The largest of `[B, G, K]` before each key, sinks aside: `[B, G, K + 1]`, 0 where there is none."""
    counted = length.clone()
    counted[..., :num_sinks] = 0
    return functional.pad(counted.cummax(-1).values, (1, 0))


def _by_block(rows: Tensor, num_rows: int, fill: float) -> Tensor:
    """`[B, H, Q]` -> `[B, H, blocks, num_rows]`, the first block filled up in front."""
    return functional.pad(rows, (-rows.size(-1) % num_rows, 0), value=fill).unflatten(-1, (-1, num_rows))


def _runs(chosen: list[bool], group_size: int) -> Iterator[slice]:
    """The heads chosen, consecutive ones together: those of one group, or of groups of one head."""
    if all(chosen):
        yield ALL
        return
    for (is_chosen, _), run in groupby(
        enumerate(chosen), lambda item: (item[1], item[0] // group_size if group_size > 1 else 0)
    ):
        heads = [head for head, _ in run]
        if is_chosen:
            yield slice(heads[0], heads[-1] + 1)
