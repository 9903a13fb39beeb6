"""What a rank sends in one optimizer step, by kind.

Counted are the collectives that a step calls, at what each rank sends by a ring: an all-reduce of n bytes over p ranks
takes 2 n (p - 1) / p, a gather of n bytes or a reduction that scatters them half of that.
"""

from typing import NamedTuple

from megatron_mep.plan.memory import WIDE
from megatron_mep.plan.share import Share
from megatron_mep.training.zero import MOST_LIVE


class Traffic(NamedTuple):
    """Collectives of one kind in a step."""

    what: str
    over: str
    """The axis whose ranks take part."""
    operation: str
    calls: int
    """Tensors that are sent; data-parallel ones go in as many pieces as they fill buckets."""
    payload: int
    """Bytes of all those tensors, whole."""
    sent: int
    """Bytes that one rank sends."""


def communication_of(share: Share) -> list[Traffic]:
    """All that moves more than a few numbers; nothing over axes of one rank."""
    return [each for each in (*_tensor(share), *_data(share)) if each.sent]


def _tensor(share: Share) -> list[Traffic]:
    """Of the layers that tensor ranks share, two of them in each; the embedding and the output layer are shared too."""
    layers, micro_batches = share.model.num_layers, share.micro_batches
    stream = share.itemsize * share.tokens * share.model.hidden_size
    again = 2 * layers if share.training.recompute == "full" else 0
    loss = _of("loss", "tensor", "all-reduce", 3 * micro_batches, WIDE * share.tokens, share.tensor)
    if not share.sequence:
        calls = (4 * layers + 2 + again) * micro_batches
        return [_of("activations", "tensor", "all-reduce", calls, stream, share.tensor), loss]
    # both passes gather what a linear layer takes, the backward pass once more for its weights
    gathers, scatters = (6 * layers + 3 + again) * micro_batches, (4 * layers + 2 + again) * micro_batches
    return [
        _of("activations", "tensor", "all-gather", gathers, stream, share.tensor),
        _of("activations", "tensor", "reduce-scatter", scatters, stream, share.tensor),
        loss,
    ]


def _data(share: Share) -> list[Traffic]:
    """Gradients go in fp32, weights in their own type."""
    stage, micro_batches, weights = share.training.zero_stage, share.micro_batches, share.num_weights
    gradients, updated = WIDE * weights, share.itemsize * weights
    if stage < 3:
        reductions = micro_batches if stage == 2 else 1
        sums = _of("gradients", "data", "all-reduce", reductions, gradients, share.data)
        return [sums, _of("weights", "data", "all-gather", 1, updated, share.data)] if stage else [sums]
    # what fits beside the rest stays gathered over a step; else each pass gathers it
    gathers = 1 if weights <= MOST_LIVE else 2 * micro_batches
    return [
        _of("gradients", "data", "reduce-scatter", micro_batches, gradients, share.data),
        _of("weights", "data", "all-gather", gathers, updated, share.data),
    ]


def _of(what: str, over: str, operation: str, calls: int, size: int, ranks: int) -> Traffic:
    passes = 2 if operation == "all-reduce" else 1
    return Traffic(what, over, operation, calls, calls * size, passes * calls * size * (ranks - 1) // ranks)
