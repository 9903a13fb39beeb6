"""Which rank writes which weights and moments: ranks that hold the same divide them by size."""

from dataclasses import replace
from functools import partial
from heapq import heapify, heapreplace
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from megatron_mep.checkpoint.state import Sharded, ValueOf, moment, weights
from megatron_mep.checkpoint.zero_state import MOMENTS, master_of, moment_of

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

WEIGHTS = "model"
"""The part of the state that holds weights and constants; the others hold a kind of moment each."""
Item = tuple[str, str]
"""A part of the state, and a name in it."""


def share_of(template: Sharded, rank: int, num_ranks: int) -> frozenset[Item]:
    """What one of the ranks that hold the same weights writes; all of them come to the same division by themselves.

    The largest tensor is given first, each to the rank that has least until then. What another group of ranks writes,
    such as whatever tensor ranks hold alike, is given to none.
    """
    written = {name: entry for name, entry in template.items() if not any(entry.replica_id[:-1])}
    sizes = {(WEIGHTS, name): _size(entry.data) for name, entry in written.items()}
    for kind in MOMENTS:
        sizes |= {(kind, name): _size(e.data) for name, e in written.items() if isinstance(e.data, nn.Parameter)}
    loads = [(0, each) for each in range(num_ranks)]
    heapify(loads)
    mine = set()
    for size, item in sorted(((size, item) for item, size in sizes.items()), key=lambda found: (-found[0], found[1])):
        load, writer = loads[0]
        heapreplace(loads, (load + size, writer))
        if writer == rank:
            mine.add(item)
    return frozenset(mine)


def parts_to_write(
    engine: "DeepSpeedEngine", template: Sharded, mine: frozenset[Item], copied: bool
) -> dict[str, Sharded]:
    """Weights and moments in Megatron-core's sharded form, the values of this rank's share in host memory.

    Of all else only shapes are here: all together are three copies of the model, more than a host may have room for.
    Collective over the ranks that hold the same weights, which each keep their own share.

    Args:
        engine: Holds the weights and moments.
        template: Where each weight belongs.
        mine: What this rank writes, as `share_of` says.
        copied: Whether values must stay as they are when training goes on; else they may be those that it changes.
    """
    values: dict[str, ValueOf] = {
        WEIGHTS: master_of,
        **{kind: partial(moment_of, name=kind, engine=engine) for kind in MOMENTS},
    }
    parts: dict[str, Sharded] = {}
    for kind, value_of in values.items():
        parts[kind] = {}
        for name, entry in template.items():
            is_mine = (kind, name) in mine
            if isinstance(entry.data, nn.Parameter):
                kept = _kept(value_of, is_mine, copied)
                one = weights({name: entry}, kept) if kind == WEIGHTS else moment({name: entry}, kind, kept)
            elif kind == WEIGHTS:
                one = {name: replace(entry, data=entry.data.to("cpu", copy=copied))}
            else:
                continue
            # what Megatron-core knows as 0 on all axes is written, all else is a replica of it
            parts[kind][name] = replace(one[name], replica_id=(*entry.replica_id[:-1], 0 if is_mine else 1))
    return parts


def _kept(value_of: ValueOf, is_mine: bool, copied: bool) -> ValueOf:
    def value(parameter: nn.Parameter) -> Tensor:
        whole = value_of(parameter)
        return whole.to("cpu", copy=copied) if is_mine else torch.zeros((), dtype=whole.dtype).expand(whole.shape)

    return value


def _size(data: Tensor) -> int:
    """Numbers in a weight on this rank, also where ZeRO keeps only a part of it here."""
    return prod(getattr(data, "ds_shape", data.shape))
