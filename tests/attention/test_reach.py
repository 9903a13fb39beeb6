"""The rule that walks outwards: what is dropped stays below its bound, and what is kept is computed once."""

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.compiled import block_rows, compiled_attention, forward_pass
from megatron_mep.attention.reach import NUM_SINKS, _ScoreBound
from megatron_mep.attention.reference import dense_bias, reference_attention
from megatron_mep.attention.tiles import Tile
from megatron_mep.attention.toeplitz import Rows, toeplitz_attention
from megatron_mep.attention.work import Work
from tests.attention.oracle import SCALE, Inputs, Shape, compiled_or_skip, output_and_gradients
from tests.support.tolerance import assert_exact_equal, assert_within_budget

EPSILON = 1e-6
ROWS = 32
SLOPES = torch.tensor([1.0, 0.5, 0.1, 0.03])

both = pytest.mark.parametrize("learned", [True, False], ids=["learned", "fixed"])
shapes = pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 4, 4, 640, 640),
        Shape(2, 4, 2, 601, 601),
        Shape(2, 4, 1, 300, 640),
        Shape(1, 4, 4, 5, 640),
        Shape(1, 4, 2, 1, 640),
    ],
    ids=["square", "two samples of groups", "fewer queries", "few queries", "one query"],
)


def inputs_of(shape: Shape, dtype: torch.dtype = torch.float32, learned: bool = False) -> Inputs:
    """A linear bias of four slopes and one distance to spare; normal queries, keys and values."""
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(dtype)

    batch, heads, groups, queries, keys, size = shape
    bias = -SLOPES[:, None] * torch.arange(keys + 1)
    bias = bias.to(torch.promote_types(dtype, torch.float32)).requires_grad_(learned)
    sizes = [(batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, size)]
    return Inputs(*(normal(*each).requires_grad_() for each in sizes), bias, normal(batch, heads, queries, size))


class ByTorch:
    """Tiles of torch's kernel."""

    def __call__(self, *inputs: Tensor, work: Work | None = None, epsilon: float = EPSILON) -> Tensor:
        rows = Rows(diagonal=ROWS, block=2 * ROWS, window=ROWS, learned=ROWS)
        return toeplitz_attention(*inputs, scale=SCALE, epsilon=epsilon, work=work, rows=rows)

    def computed(self, inputs: Inputs, epsilon: float = EPSILON) -> Tensor:
        """How often the score of each pair was computed, `[B, H, Q, K]`."""
        work = Recorded()
        self(*inputs[:4], work=work, epsilon=epsilon)
        times = torch.zeros(*inputs.query.shape[:3], inputs.key.size(2), dtype=torch.int)
        for tile in work.tiles:
            times[:, tile.heads, tile.rows, tile.keys] += 1
        return times


class Recorded(Work):
    """Also keeps the tiles."""

    tiles: list[Tile]

    def add(self, tiles: Iterable[Tile], query_shape: tuple[int, ...], num_keys: int, dropped: float) -> None:
        self.tiles = [tile.moved(step) for tile in tiles for step in range(tile.num_tiles)]
        super().add(tiles, query_shape, num_keys, dropped)


class Compiled:
    """Our kernel."""

    def __call__(self, *inputs: Tensor, work: Work | None = None, epsilon: float = EPSILON) -> Tensor:
        return compiled_attention(*inputs, scale=SCALE, epsilon=epsilon, work=work)

    def computed(self, inputs: Inputs, epsilon: float = EPSILON) -> Tensor:
        """How often the score of each pair was computed, `[B, H, Q, K]`."""
        num_queries, num_keys = inputs.query.size(2), inputs.key.size(2)
        passed = forward_pass(*(tensor.detach() for tensor in inputs[:4]), scale=SCALE, epsilon=epsilon)
        times = torch.zeros(*inputs.query.shape[:3], num_keys, dtype=torch.int)
        for place in itertools.product(*map(range, passed.first.shape)):
            start = place[2] * block_rows()
            stop = min(start + block_rows(), num_queries)
            rows = times[place[0], place[1], start:stop]
            rows[:, int(passed.first[place]) : num_keys - num_queries + stop] += 1
            rows[:, : passed.num_sinks] += 1
        return times


Attention = ByTorch | Compiled


@pytest.fixture(params=["toeplitz", "compiled"])
def attend(request: pytest.FixtureRequest) -> Attention:
    """Each of the attentions by distance on a CPU."""
    if request.param == "toeplitz":
        return ByTorch()
    compiled_or_skip()
    return Compiled()


def attend_densely(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return reference_attention(query, key, value, dense_bias(bias, query.size(2), key.size(2)), scale=SCALE)


def softmax_weights(inputs: Inputs) -> Tensor:
    """What attention that keeps all keys gives each of them, `[B, H, Q, K]` in fp64."""
    query, key, _, bias, _ = (tensor.detach().double() for tensor in inputs)
    num_queries, num_keys = query.size(2), key.size(2)
    scores = SCALE * query @ key.repeat_interleave(query.size(1) // key.size(1), 1).mT
    distance = torch.arange(num_keys)[num_keys - num_queries :, None] - torch.arange(num_keys)
    scores = scores + bias[:, distance.clamp(min=0)]
    return scores.masked_fill(distance < 0, -torch.inf).softmax(-1)


def assert_bound_holds(attend: Attention, inputs: Inputs) -> Work:
    work = Work()
    attend(*inputs[:4], work=work)
    times = attend.computed(inputs)
    assert times.max() == 1, "a pair counts once"
    dropped = (softmax_weights(inputs) * (times == 0)).sum(-1).max()
    assert dropped <= work.dropped * (1 + 1e-3) + 1e-300
    assert work.dropped <= EPSILON
    return work


@shapes
def test_no_row_drops_more_than_its_bound(attend, shape):
    work = assert_bound_holds(attend, inputs_of(shape))
    assert work.kept < 0.6


def test_far_keys_that_are_sought_are_kept(attend):
    inputs = inputs_of(Shape(1, 4, 4, 640, 640))
    with torch.no_grad():
        inputs.key[:, :, 64:128] = 12 * inputs.query[:, :, -1:]
    kept = assert_bound_holds(attend, inputs).kept
    assert kept > 1.1 * assert_bound_holds(attend, inputs_of(Shape(1, 4, 4, 640, 640))).kept


def test_a_vector_common_to_all_keys_costs_nothing(attend):
    inputs = inputs_of(Shape(1, 4, 2, 640, 640))
    plain = assert_bound_holds(attend, inputs).kept
    with torch.no_grad():
        inputs.key.add_(10.0)
    # Cauchy-Schwarz alone would add a hundred nats
    assert assert_bound_holds(attend, inputs).kept <= 1.1 * plain


def test_a_sink_at_the_beginning_costs_its_own_keys_alone(attend):
    inputs = inputs_of(Shape(1, 4, 2, 640, 640))
    plain = assert_bound_holds(attend, inputs).kept
    with torch.no_grad():
        inputs.key[:, :, 0] *= 30
    work = assert_bound_holds(attend, inputs)
    assert work.kept <= plain + 2 * NUM_SINKS / 640
    assert attend.computed(inputs)[:, :, NUM_SINKS:, :NUM_SINKS].all()


@both
@shapes
def test_output_and_gradients_are_those_of_all_keys(attend, shape, learned):
    inputs = inputs_of(shape, learned=learned)
    actual = output_and_gradients(attend, inputs)
    plain = output_and_gradients(attend_densely, inputs)
    exact = output_and_gradients(attend_densely, inputs.double())
    for name in exact:
        # what may be dropped besides rounding: 6 epsilon of gradients and values, of a bias once a row
        scale = max(1.0, exact[name].abs().max().item())
        allowed = 6 * EPSILON * scale * (shape.queries if name == "gradient of bias" else 1)
        clipped = exact[name] + (actual[name] - exact[name]).clamp(-allowed, allowed)
        assert_within_budget(actual[name], plain[name], clipped, name)
        assert (actual[name] - exact[name]).norm() <= 2e-6 * exact[name].norm() + 1e-6


@both
def test_dropping_less_than_rounding_shows_nowhere(attend, learned):
    inputs = inputs_of(Shape(2, 4, 2, 500, 500), learned=learned)
    work = Work()
    actual = output_and_gradients(partial(attend, epsilon=1e-9, work=work), inputs)
    assert work.kept < 0.9
    plain = output_and_gradients(attend_densely, inputs)
    exact = output_and_gradients(attend_densely, inputs.double())
    for name in exact:
        assert_within_budget(actual[name], plain[name], exact[name], name)


def test_bf16_is_as_close_as_plain_bf16(attend):
    inputs = inputs_of(Shape(1, 4, 2, 400, 400), torch.bfloat16)
    actual = output_and_gradients(attend, inputs)
    plain = output_and_gradients(attend_densely, inputs)
    exact = output_and_gradients(attend_densely, inputs.double())
    for name in exact:
        assert_within_budget(actual[name], plain[name], exact[name], name)


@pytest.mark.parametrize(
    "bias_of",
    [torch.zeros_like, lambda distance: -torch.log1p(distance), lambda distance: 0.1 * distance],
    ids=["none", "logarithmic", "rising"],
)
def test_a_bias_without_a_tail_is_computed_whole(attend, bias_of):
    inputs = inputs_of(Shape(1, 4, 2, 640, 640))
    inputs = inputs._replace(bias=bias_of(torch.arange(641.0)).repeat(4, 1))
    work = Work()
    assert_exact_equal(attend(*inputs[:4], work=work), attend(*inputs[:4], epsilon=0.0))
    assert (work.kept, work.dropped) == (1.0, 0.0)


def test_windows_follow_the_bias_of_each_call(attend):
    inputs = inputs_of(Shape(1, 4, 2, 640, 640), learned=True)
    steep, flat = Work(), Work()
    attend(*inputs[:4], work=steep)
    with torch.no_grad():
        inputs.bias.mul_(0.2)
    attend(*inputs[:4], work=flat)
    assert steep.kept < 0.8 * flat.kept


def test_keys_that_are_no_numbers_are_not_skipped(attend):
    inputs = inputs_of(Shape(1, 4, 4, 640, 640))
    with torch.no_grad():
        inputs.key[0, 1, 300] = torch.nan
    output = attend(*inputs[:4])
    assert output[0, 1, 300:].isnan().all()
    assert output[0, 0].isfinite().all()


@pytest.mark.parametrize("num_keys", [1, 2, 31, 32, 33, 70])
def test_few_keys_are_no_special_case(attend, num_keys):
    inputs = inputs_of(Shape(2, 4, 2, num_keys, num_keys))
    inputs = inputs._replace(bias=10 * inputs.bias)
    assert_bound_holds(attend, inputs)


def test_a_negative_scale_keeps_the_bound(attend):
    inputs = inputs_of(Shape(1, 4, 4, 640, 640))
    with torch.no_grad():
        inputs.key[:, :, 40:60] = -20 * inputs.query[:, :, -1:]
    query = -inputs.query.detach()
    function = toeplitz_attention if isinstance(attend, ByTorch) else compiled_attention
    actual = function(query, *inputs[1:4], scale=-SCALE, epsilon=EPSILON)
    torch.testing.assert_close(actual, attend(*inputs[:4]), rtol=1e-5, atol=1e-5)


def test_autocast_does_not_reach_the_bound():
    inputs = inputs_of(Shape(1, 4, 2, 96, 128))
    query, key = inputs.query.detach(), inputs.key.detach() + 5.0
    plain = _ScoreBound(query, key, SCALE, num_rows=ROWS)(torch.full((4, 3), 64))
    with torch.autocast("cpu", torch.bfloat16):
        assert_exact_equal(_ScoreBound(query, key, SCALE, num_rows=ROWS)(torch.full((4, 3), 64)), plain)


@pytest.mark.parametrize(("offset", "size"), [(0.0, 30.0), (-1e4, 1.0), (-1e6, 1.0)])
def test_the_bound_holds_where_rounding_is_coarse(attend, offset, size):
    inputs = inputs_of(Shape(1, 4, 4, 640, 640))
    one = torch.ones(8)
    with torch.no_grad():
        # queries and keys of one direction: the bound is tight
        inputs.query.copy_(size * one)
        inputs.key.copy_(-size * one * torch.linspace(0.9, 1, 640)[:, None])
        inputs.key[:, :, :300].neg_()
        inputs.bias.mul_(size * size).add_(offset)
    assert_bound_holds(attend, inputs)


@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_scores_stay_below_their_bound(offset):
    inputs = inputs_of(Shape(2, 4, 2, 96, 128))
    query, key = inputs.query.detach(), inputs.key.detach() + offset
    bound = _ScoreBound(query, key, SCALE, num_rows=ROWS)
    scores = SCALE * query.double() @ key.double().repeat_interleave(2, 1).mT
    for first in (1, 17, 64, 128):
        limit = bound(torch.full((4, 3), first))
        largest = scores[..., :first].amax(-1).unflatten(-1, (3, ROWS))
        assert bool((largest <= limit * (1 + 1e-5) + 1e-5).all())


@pytest.mark.parametrize("change", [{"epsilon": 0.0}, {}])
def test_work_is_counted(attend, change):
    inputs = inputs_of(Shape(2, 4, 2, 300, 300))
    work = Work()
    options: dict[str, Any] = {"work": work, **change}
    attend(*inputs[:4], **options)
    causal = torch.ones(300, 300, dtype=torch.int).tril()
    assert work.causal_pairs == 2 * 4 * int(causal.sum())
    assert work.kept_pairs == int((attend.computed(inputs, **change) * causal).sum())
    attend(*inputs[:4], **options)
    assert work.causal_pairs == 2 * 2 * 4 * int(causal.sum())
