"""What a rank sends in one optimizer step, by kind.

Counted are the collectives that a step calls, at what each rank sends by a ring: an all-reduce of n bytes over p ranks
takes 2 n (p - 1) / p, a gather of n bytes or a reduction that scatters them half of that.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from megatron_mep.encodings.carried import Carried
from megatron_mep.plan.attention import WIDE
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
    """Bytes of all those tensors: whole where ranks put together or add up, else as each rank sends them."""
    sent: int
    """Bytes that one rank sends."""


def communication_of(share: Share) -> list[Traffic]:
    """All that moves more than a few numbers; nothing over axes of one rank."""
    kinds = (*_tensor(share), *_context(share), *_pipeline(share), *_data(share))
    return [each for each in kinds if each.sent]


def _tensor(share: Share) -> list[Traffic]:
    """Of the layers that tensor ranks share, two of them in each; the embedding and the output layer are shared too."""
    layers, micro_batches = share.num_layers, share.micro_batches
    stream = share.itemsize * share.tokens * share.model.hidden_size
    again = 2 * layers if share.training.recompute == "full" else 0
    ends = share.stage.is_first + share.stage.is_last
    losses = 3 * micro_batches if share.stage.is_last else 0
    loss = _of("loss", "tensor", "all-reduce", losses, WIDE * share.tokens, share.tensor)
    if not share.sequence:
        calls = (4 * layers + ends + again) * micro_batches
        return [_of("activations", "tensor", "all-reduce", calls, stream, share.tensor), loss]
    # both passes gather what a linear layer takes, the backward pass once more for its weights
    gathers = (6 * layers + share.stage.is_first + 2 * share.stage.is_last + again) * micro_batches
    scatters = (4 * layers + ends + again) * micro_batches
    return [
        _of("activations", "tensor", "all-gather", gathers, stream, share.tensor),
        _of("activations", "tensor", "reduce-scatter", scatters, stream, share.tensor),
        loss,
    ]


def _context(share: Share) -> Iterator[Traffic]:
    """Keys and values, or all that attention takes and returns; the forward pass sends again what is recomputed."""
    context, model = share.context, share.model
    passes = share.num_layers * share.micro_batches
    forward = passes * (1 if share.training.recompute == "none" else 2)
    groups = max(model.groups // share.tensor, 1)
    queries = share.tokens * model.hidden_size // share.tensor
    keys = share.tokens * groups * model.head_size
    match share.exchange:
        case "all_gather":
            whole = context * keys
            told = "keys and values", "context"
            yield _of(*told, "all-gather", 2 * forward, share.itemsize * whole, context)
            yield _of(*told, "reduce-scatter", 2 * passes, WIDE * whole, context)
        case "ulysses":
            repeated = keys * context // math.gcd(groups, context)
            each = share.itemsize * (queries + repeated) // 2
            yield _of("heads", "context", "all-to-all", 4 * (forward + passes), each, context)
        case "ring":
            around = 2 * (context - 1) * (forward + passes)
            yield _passed("keys and values", "context", around, share.itemsize * keys, context)
            yield _passed("their gradients", "context", 2 * context * passes, WIDE * keys, context)
    if share.stage.is_last:
        yield _of("loss", "context", "all-gather", share.micro_batches, WIDE * share.tokens * context, context)


def _pipeline(share: Share) -> Iterator[Traffic]:
    """Activations to the next chunk's stage, and their gradients to the one before."""
    ways = 2 * share.stage.num_chunks - share.stage.is_first - share.stage.is_last
    # the states of a `Carried` encoding are as wide as the hidden states, and both go in fp32
    each = 2 * WIDE if isinstance(share.model.encoding, Carried) else share.itemsize
    stream = each * share.tokens_between * share.model.hidden_size
    yield _passed("activations", "pipeline", ways * share.micro_batches, stream, share.stage.size)
    if share.model.tied_embeddings and share.stage.size > 1 and (share.stage.is_first or share.stage.is_last):
        embedding = WIDE * share.vocabulary * share.model.hidden_size // share.tensor
        yield _of("tied embedding", "pipeline", "all-reduce", 1, embedding, 2)


def _data(share: Share) -> list[Traffic]:
    """Gradients go in fp32, weights in their own type, over all ranks that hold the same weights."""
    stage, micro_batches, weights = share.training.zero_stage, share.micro_batches, share.num_weights
    gradients, updated = WIDE * weights, share.itemsize * weights
    over = "data x context" if share.context > 1 else "data"
    if stage < 3:
        reductions = micro_batches if stage == 2 else 1
        sums = _of("gradients", over, "all-reduce", reductions, gradients, share.copies)
        return [sums, _of("weights", over, "all-gather", 1, updated, share.copies)] if stage else [sums]
    # what fits beside the rest stays gathered over a step; else each pass gathers it
    gathers = 1 if weights <= MOST_LIVE else 2 * micro_batches
    return [
        _of("gradients", over, "reduce-scatter", micro_batches, gradients, share.copies),
        _of("weights", over, "all-gather", gathers, updated, share.copies),
    ]


def _of(what: str, over: str, operation: str, calls: int, size: int, ranks: int) -> Traffic:
    passes = 2 if operation == "all-reduce" else 1
    return Traffic(what, over, operation, calls, calls * size, passes * calls * size * (ranks - 1) // ranks)


def _passed(what: str, over: str, calls: int, size: int, ranks: int) -> Traffic:
    """Sent from one rank to another."""
    sent = calls * size if ranks > 1 else 0
    return Traffic(what, over, "send", calls, sent, sent)
