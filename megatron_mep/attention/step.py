"""One query against cached keys, by a bias of distance, on a CPU: the step of a decoding.

The row of biases is a part of one reversed table. Far keys are left out by the rule of `reach`, with the longest key of
all in the place of a running maximum: so a step reads as many keys as its heads see, however many are cached.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.hankel import EXCLUDED
from megatron_mep.attention.join import join
from megatron_mep.attention.reach import NUM_SINKS, ROUNDING, ROUNDINGS, SINK_FACTOR
from megatron_mep.attention.windows import log_tails
from megatron_mep.attention.work import Work

NUM_NEAR = 256
"""Keys that every head attends to first."""
STEP = 64
"""The part before them begins at a multiple of this."""

OfDistance = Callable[[Tensor], Tensor]
"""Biases `[H, N]` of distances `[N]`."""


class Decoding:
    """What attention of one layer keeps from step to step: its biases, and how long the keys are."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: other keys, or other weights of the bias."""
        self._bias: Tensor | None = None
        self._tails: Tensor | None = None
        self._reversed: Tensor | None = None
        self._cache: tuple[int, ...] = ()
        self._num_keys = 0
        self._longest: Tensor | None = None  # of the sinks up to each sink, then of the others up to each of them

    def bias(self, of_distance: OfDistance, num_keys: int, device: torch.device) -> Tensor:
        """Biases `[H, N]` by distance, N >= `num_keys`, computed anew only as often as the length doubles."""
        if self._bias is None or self._bias.size(1) < num_keys or self._bias.device != device:
            num_distances = 2 ** math.ceil(math.log2(num_keys + 1))
            distance = torch.arange(num_distances, dtype=torch.float32, device=device)
            self._bias = of_distance(distance).detach()
            self._reversed = self._tails = None
        return self._bias

    def row(self, num_keys: int) -> Tensor:
        """The biases of the last query for the keys `[H, K]`, a view."""
        assert self._bias is not None, "`bias` comes first"
        if self._reversed is None:
            # the kernel takes a part that is wholly excluded for one of no score at all
            self._reversed = self._bias.flip(1).clamp(min=EXCLUDED)
        return self._reversed[:, self._bias.size(1) - num_keys :]

    def windows(self, log_tail: Tensor) -> Tensor:
        """How many distances a row keeps whose dropped biases may sum to `exp(log_tail [B, H])`: `[H]`."""
        assert self._bias is not None, "`bias` comes first"
        if self._tails is None:
            # ascending, from no distance left out to all of them
            self._tails = log_tails(self._bias).flip(1).contiguous()
        # what is no number proves nothing
        limit = log_tail.amin(0).double().nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        num_dropped = torch.searchsorted(self._tails, limit[:, None], right=True)[:, 0]
        return self._tails.size(1) - num_dropped

    def note(self, key: Tensor, num_new: int) -> None:
        """Measure the last `num_new` of the cached keys `[B, G, K, D]`; every call with keys must come by here.

        A cache that was read back to an earlier length is followed; for another one, all keys are measured.
        """
        num_keys, dtype = key.size(2), torch.promote_types(key.dtype, torch.float32)
        cache = key.untyped_storage().data_ptr(), key.storage_offset(), *key.shape[:2]
        first = num_keys - num_new
        if self._longest is None or cache != self._cache or first > self._num_keys:
            self._longest, first = key.new_zeros(*key.shape[:2], 0, dtype=dtype), 0
        if self._longest.size(2) < num_keys:
            self._longest = functional.pad(self._longest, (0, 2 * num_keys - self._longest.size(2)))
        length = torch.linalg.vector_norm(key[:, :, first:], dim=-1, dtype=dtype)
        for start, stop in ((first, min(NUM_SINKS, num_keys)), (max(first, NUM_SINKS), num_keys)):
            if start < stop:
                new = length[:, :, start - first : stop - first].cummax(-1).values
                before = self._longest[:, :, [start - 1]] if start not in (0, NUM_SINKS) else new[:, :, :1]
                self._longest[:, :, start:stop] = torch.maximum(new, before)
        self._cache, self._num_keys = cache, num_keys

    def longest(self) -> tuple[Tensor, int]:
        """The length of the longest key `[B, G]` noted, and how many sinks at the beginning are left out of it."""
        assert self._longest is not None, "`note` comes first"
        sinks = self._longest[:, :, min(NUM_SINKS, self._num_keys) - 1]
        if self._num_keys <= NUM_SINKS:
            return sinks, 0
        others = self._longest[:, :, self._num_keys - 1]
        if bool((sinks > SINK_FACTOR * others).any()):
            return others, NUM_SINKS
        return torch.maximum(sinks, others), 0


def step_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    epsilon: float,
    decoding: Decoding,
    work: Work | None = None,
) -> Tensor:
    """The arguments and result of `toeplitz_attention` for one query, the bias being that of `decoding`."""
    assert query.size(2) == 1, f"a step has one query, not {query.size(2)}"
    num_keys, group_size = key.size(2), query.size(1) // key.size(1)
    row = decoding.row(num_keys).to(torch.promote_types(query.dtype, torch.float32))

    def attended(keys: slice, heads: slice = slice(None), groups: slice = slice(None)) -> tuple[Tensor, Tensor]:
        output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[:, heads],
            key[:, groups, keys],
            value[:, groups, keys],
            attn_mask=row[None, heads, None, keys],
            scale=scale,
        )
        return output.to(row.dtype), logsumexp

    nearest = num_keys - NUM_NEAR if epsilon and num_keys - NUM_NEAR > NUM_SINKS else 0
    output, logsumexp = attended(slice(nearest, num_keys))
    kept = query.size(1) * (num_keys - nearest)
    dropped = 0.0
    if nearest:
        longest, num_sinks = decoding.longest()
        reach = abs(scale) * torch.linalg.vector_norm(query[:, :, 0], dim=-1, dtype=row.dtype)
        largest = reach * longest.repeat_interleave(group_size, dim=1)
        slack = ROUNDING + ROUNDINGS * torch.finfo(row.dtype).eps * float((largest + logsumexp[..., 0].abs()).amax())
        windows = decoding.windows(math.log(epsilon) - slack - largest + logsumexp[..., 0])
        first_keys = (num_keys - windows).clamp(min=num_sinks) // STEP * STEP
        for head, first in enumerate(first_keys.clamp(min=num_sinks).tolist()):
            heads, groups = slice(head, head + 1), slice(head // group_size, head // group_size + 1)
            parts = [slice(0, num_sinks)] if num_sinks else []
            parts += [slice(first, nearest)] if first < nearest else []
            for keys in parts:
                join(output[:, heads], logsumexp[:, heads], *attended(keys, heads, groups))
                kept += keys.stop - keys.start
        dropped = epsilon
    if work is not None:
        work.count(query.size(0) * kept, query.shape, num_keys, dropped)
    return output.to(query.dtype)
