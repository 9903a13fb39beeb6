"""Who holds which tokens, and what is gathered, divided and exchanged between context ranks."""

import torch

from megatron_mep.parallel.context import Context
from megatron_mep.parallel.passing import Passing
from tests.support.distributed import joined, run
from tests.support.tolerance import assert_exact_equal

LENGTH, SAMPLES, HEADS, SIZE = 16, 2, 4, 3
CHUNKS = {2: ((0, 3), (1, 2)), 4: ((0, 7), (1, 6), (2, 5), (3, 4))}
"""Of each rank, by the number of ranks."""


def test_a_rank_alone_holds_everything():
    tensor = torch.arange(6.0)
    alone = Context()
    assert (alone.size, alone.rank) == (1, 0)
    for same in (alone.own(tensor, 0), alone.gathered(tensor, 0), alone.whole(tensor, 0)):
        assert same is tensor


def test_chunks_are_divided_and_put_together_in_order():
    for size in CHUNKS:
        run(_divided, size, size)


def _divided(size: int) -> None:
    context = Context(joined(context=size).context_group)
    assert context.chunks == CHUNKS[size][context.rank]
    whole = torch.arange(LENGTH * SAMPLES).reshape(SAMPLES, LENGTH)
    length = LENGTH // (2 * size)
    mine = [whole[:, number * length : (number + 1) * length] for number in CHUNKS[size][context.rank]]
    own = context.own(whole, 1)
    assert_exact_equal(own, torch.cat(mine, 1))
    for together in (context.gathered(own, -1), context.whole(own, 1), context.gathered(own.mT, 0).mT):
        assert_exact_equal(together, whole)


def test_gradients_of_what_is_gathered_are_summed_and_of_what_goes_on_alike_as_for_an_average():
    run(_gradients, 2)


def _gradients() -> None:
    context = Context(joined(context=2).context_group)
    part = torch.zeros(LENGTH // 2, requires_grad=True)
    slope = torch.arange(float(LENGTH))
    # each rank weighs the whole with a slope of its own
    ((context.rank + 1) * slope * context.gathered(part, 0)).sum().backward()
    assert part.grad is not None
    assert_exact_equal(part.grad, 3 * context.own(slope, 0))
    part.grad = None
    (slope * context.whole(part, 0)).sum().backward()
    assert_exact_equal(part.grad, 2 * context.own(slope, 0))


def test_heads_and_tokens_change_places_and_so_do_their_gradients():
    for size in CHUNKS:
        run(_exchanged, size, size)


def _exchanged(size: int) -> None:
    context = Context(joined(context=size).context_group)
    whole = torch.randn(LENGTH, SAMPLES, HEADS, SIZE, generator=torch.Generator().manual_seed(0))
    part = context.own(whole, 0).requires_grad_()
    heads = context.to_heads(part)
    assert_exact_equal(heads, whole.chunk(size, 2)[context.rank])
    assert_exact_equal(context.to_tokens(heads), part)
    (whole.chunk(size, 2)[context.rank] * heads).sum().backward()
    assert_exact_equal(part.grad, part.detach())
    part.grad = None
    (part.detach() * context.to_tokens(context.to_heads(part))).sum().backward()
    assert_exact_equal(part.grad, part.detach())


def test_tensors_travel_to_the_next_rank():
    run(_passed, 4)


def _passed() -> None:
    context = Context(joined(context=4).context_group)
    tensors = [torch.full((2,), float(context.rank)), torch.full((3, 1), -float(context.rank))]
    for step in range(1, 5):
        tensors = Passing(tensors, context).arrived()
        source = (context.rank - step) % 4
        assert [tensor.unique().tolist() for tensor in tensors] == [[float(source)], [-float(source)]]
