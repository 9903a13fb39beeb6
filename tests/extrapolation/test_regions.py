"""What all tricks that divide pairs into regions have in common."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.pair_scores import pair_scores_attention
from megatron_mep.encodings.base import PairScores, Rotation, Weight
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.rotary import angles_at, geometric
from megatron_mep.encodings.rotate import turn
from megatron_mep.encodings.xpos import Xpos
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.blockwise import Blockwise
from megatron_mep.extrapolation.ntk import DynamicNtk, Ntk
from megatron_mep.extrapolation.rerope import Rerope
from megatron_mep.extrapolation.self_extend import SelfExtend
from megatron_mep.extrapolation.sink_window import SinkWindow
from tests.extrapolation.pairs import (
    GROUPS,
    HEAD_SIZE,
    HEADS,
    LENGTH,
    SIZES,
    assert_scores,
    expected_scores,
    queries_and_keys,
    scores_of,
    turned_product,
)
from tests.extrapolation.tricked import ALL, MESA, applied
from tests.model.test_gpt import Recorder
from tests.support.tiny import LEARNED, SEQ_LENGTH
from tests.support.tolerance import assert_exact_equal

every = pytest.mark.parametrize("name", ALL)


def tricked(name: str, dtype: torch.dtype = torch.float32) -> tuple[PairScores, dict[str, Tensor]]:
    """The encoding at the length of the tests, and its weights."""
    changed = applied(name)
    assert isinstance(changed, PairScores)
    declared = changed.layer_weights(SIZES, torch.Generator().manual_seed(5))
    return changed, {key: weight.value.to(dtype).requires_grad_(weight.learned) for key, weight in declared.items()}


def attend(name: str, query: Tensor, key: Tensor, value: Tensor, num_rows: int = 64) -> Tensor:
    """As a layer would call it, positions in the type of the queries."""
    encoding, weights = tricked(name, query.dtype)
    encoding = encoding.at_length(key.size(2))

    def pairs(query: Tensor, key: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        return encoding.of_pairs(query, key, query_index.to(query.dtype), key_index.to(query.dtype), **weights)

    return pair_scores_attention(query, key, value, pairs, scale=0.5, num_rows=num_rows)


def heads(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    query, key = queries_and_keys()
    return query.to(dtype), key.to(dtype), key.flip(2).to(dtype)


@every
def test_it_declares_the_weights_of_the_trained_encoding_and_tells_both_names(name):
    encoding, tricks = ALL[name]
    changed, _ = tricked(name)
    assert changed.name == " + ".join([encoding.name, *(trick.name for trick in tricks)])
    assert changed.learned == encoding.learned
    ours, theirs = (each.layer_weights(SIZES, torch.Generator().manual_seed(5)) for each in (changed, encoding))
    assert ours.keys() == theirs.keys()
    for key, weight in theirs.items():
        assert_exact_equal(ours[key].value, weight.value, key)


@every
def test_chunks_of_queries_of_any_size_see_the_same(name):
    whole = attend(name, *heads())
    for num_rows in (1, 7):
        torch.testing.assert_close(attend(name, *heads(), num_rows=num_rows), whole, rtol=1e-12, atol=1e-12)
    query, key, value = heads()
    for first in (LENGTH - 1, LENGTH - 5):
        some = attend(name, query[:, :, first:], key, value)
        torch.testing.assert_close(some, whole[:, :, first:], rtol=1e-12, atol=1e-12)


@every
def test_fp32_errs_by_its_rounding_alone(name):
    # distances below 2^6 times scores of a few units: a hundred roundings of 2^-24
    torch.testing.assert_close(attend(name, *heads(torch.float32)).double(), attend(name, *heads()), rtol=0, atol=1e-5)


@every
def test_gradients_are_finite_and_those_of_finite_differences(name):
    short = [tensor[:, :, :20].requires_grad_() for tensor in heads()]
    assert torch.autograd.gradcheck(partial(attend, name), short, fast_mode=True)


@pytest.mark.parametrize(
    ("name", "row", "excluded"),
    [("sink_window", 40, range(3, 25)), ("blockwise", 40, range(32)), ("mesa", 34, range(3, 27))],
)
def test_excluded_keys_change_nothing_and_get_no_gradient(name, row, excluded):
    query, key, value = (tensor.requires_grad_() for tensor in heads())
    hidden = torch.tensor(list(excluded))
    other_key, other_value = (tensor.index_fill(2, hidden, 7.0) for tensor in (key, value))
    whole = attend(name, query, key, value)[:, :, row]
    assert_exact_equal(attend(name, query, other_key, other_value)[:, :, row], whole)
    for gradient in torch.autograd.grad(whole.sum(), (key, value)):
        assert not gradient[:, :, hidden].any()
        assert gradient[:, :, hidden.max() + 1 : row + 1].all()


@pytest.mark.parametrize("far", [1000, 131_071])
def test_far_positions_are_as_exact_as_near_ones(far):
    leaky = extrapolated(Rope(), [Rerope(window=16, step=1.7)], SEQ_LENGTH)
    assert isinstance(leaky, PairScores)
    query, key = queries_and_keys(2)
    place = [torch.tensor([float(position)]) for position in (far, far - 500)]
    narrow = leaky.of_pairs(query[:, :, :1].float(), key[:, :, :1].float(), *place)
    wide = leaky.of_pairs(query[:, :, :1], key[:, :, :1], *(position.double() for position in place))
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=1e-5)


@every
def test_no_tensor_grows_with_the_square_of_the_length(name):
    length = 1024
    query, key = (torch.zeros(1, heads, length, HEAD_SIZE) for heads in (HEADS, GROUPS))
    with torch.no_grad(), Recorder() as recorder:
        attend(name, query, key, key)
    # a matrix of one head in fp32
    assert recorder.largest < 4 * length**2


def test_biases_of_keys_in_the_future_are_numbers():
    mesa = extrapolated(Mep.model_validate(LEARNED), [MESA], SEQ_LENGTH).at_length(LENGTH)
    weights = {name: weight.value for name, weight in mesa.layer_weights(SIZES, torch.Generator()).items()}
    query, key = (tensor.float() for tensor in queries_and_keys())
    position = torch.arange(float(LENGTH))
    assert not mesa.of_pairs(query, key, position, position, **weights).isnan().any()


class Apart(Rotation):
    """Each head turns at a speed of its own."""

    name: str = "apart"

    @property
    def turns_heads_apart(self) -> bool:
        return True

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        return {"speed": Weight(torch.linspace(1, 2, num_heads), learned=False)}

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        return angles_at(position, geometric(100.0, head_size))

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        angle = self.angles(position, heads.size(-1))[:, None, None] * weights["speed"].to(position.dtype)[:, None]
        return turn(heads, angle.cos(), angle.sin())


def test_heads_of_a_group_may_turn_apart():
    masked = scores_of(SinkWindow(window=6, num_sinks=2).applied(Apart(), SEQ_LENGTH))
    query, key = queries_and_keys()
    position = torch.arange(LENGTH).double()
    speed = torch.linspace(1, 2, HEADS).double()
    for head in range(HEADS):
        angle = speed[head] * angles_at(position, geometric(100.0, HEAD_SIZE))
        unit = torch.polar(torch.ones_like(angle), angle)
        left, right = (
            torch.complex(*each.chunk(2, dim=-1)) * unit for each in (query[0, head], key[0, head * GROUPS // HEADS])
        )
        plain = (left[:, None] * right.conj()).real.sum(-1)
        near = masked[0, head].isfinite() & (position[:, None] - position < 6)
        torch.testing.assert_close(masked[0, head][near], plain[near], rtol=1e-12, atol=1e-12)


def test_xpos_fades_by_the_distances_that_a_trick_says():
    def faded(query: list[float], key: list[float], distance: float) -> float:
        """The sum over pairs, each turned and multiplied by zeta^(d / 20)."""
        half = len(query) // 2
        return math.fsum(
            turned_product([query[m], query[m + half]], [key[m], key[m + half]], distance * 10_000.0 ** (-m / half))
            * ((m / half + 0.4) / 1.4) ** (distance / 20)
            for m in range(half)
        )

    xpos = Xpos(scale_base=20.0)
    standing = Rerope(window=5).applied(xpos, SEQ_LENGTH)
    assert_scores(scores_of(standing), expected_scores(lambda i, j: min(i - j, 5), faded))
    masked = SinkWindow(window=5, num_sinks=3).applied(xpos, SEQ_LENGTH)
    expected = expected_scores(lambda i, j: min(i - j, 5) if i - j < 5 or j < 3 else None, faded)
    assert_scores(scores_of(masked), expected)
    # where nothing fades it is RoPE
    for trick in (MESA, SelfExtend(window=5, group=3), Rerope(window=5, step=3.0), Blockwise(block=5)):
        ours, theirs = (scores_of(trick.applied(each, SEQ_LENGTH)) for each in (Xpos(gamma=1e30), Rope()))
        assert_scores(ours, theirs)


class Warmed(Rope):
    """Queries are scaled by their positions."""

    def query_factor(self, position: Tensor) -> Tensor:
        return 1 + position


def test_the_trained_encodings_query_factor_stays():
    position = torch.arange(5.0)
    factor = Rerope().applied(Warmed(), SEQ_LENGTH).query_factor(position)
    assert factor is not None
    assert_exact_equal(factor, 1 + position)
    assert Rerope().applied(Rope(), SEQ_LENGTH).query_factor(position) is None


def test_a_rotation_whose_angles_follow_the_length_is_refused():
    dynamic = DynamicNtk().applied(Rope(), SEQ_LENGTH)
    for trick in (Rerope(), SelfExtend(), SinkWindow(), Blockwise(), MESA):
        assert trick.against(dynamic) == "needs angles that follow from a position alone"
        assert trick.against(Ntk(factor=2.0).applied(Rope(), SEQ_LENGTH)) is None
