"""A window on encodings of each kind that can have one."""

import pytest
import torch
from pydantic import ValidationError

from megatron_mep.attention.choose import choose
from megatron_mep.attention.work import Work
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias, LayerSizes, Rotation
from megatron_mep.encodings.cope import Cope
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.fox import Fox
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.tape import Tape
from megatron_mep.encodings.xpos import Xpos
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.blockwise import Blockwise
from megatron_mep.extrapolation.mesa import Mesa
from megatron_mep.extrapolation.rerope import Rerope
from megatron_mep.extrapolation.self_extend import SelfExtend
from megatron_mep.extrapolation.sink_window import SinkWindow
from megatron_mep.extrapolation.window import Window
from tests.extrapolation.pairs import LENGTH as LENGTH_OF_PAIRS
from tests.extrapolation.pairs import scores_of
from tests.support.tolerance import assert_exact_equal

LENGTH = 16
MESA = Mesa(first=3, chunk=8, push_width=4)
DISTANCES = torch.arange(40, dtype=torch.float32)


def test_a_bias_by_distance_keeps_its_window():
    weights = {"slope": Alibi().weights(4, torch.Generator())["slope"].value}
    plain, windowed = (
        encoding.of_distance(DISTANCES, **weights) for encoding in (Alibi(), Window(size=7).applied(Alibi(), LENGTH))
    )
    assert_exact_equal(windowed[:, :7], plain[:, :7])
    assert windowed[:, 7:].eq(-torch.inf).all()


def test_the_window_is_the_training_length_unless_stated():
    bias = Window().applied(Nope(), LENGTH).of_distance(DISTANCES)
    assert bias.shape == (1, 40)
    assert bias.isfinite().sum() == LENGTH


def test_a_rotation_becomes_a_bias_of_zeros_besides():
    windowed = Window(size=3).applied(Rope(), LENGTH)
    assert isinstance(windowed, Rotation)
    assert isinstance(windowed, DistanceBias)
    assert windowed.of_distance(DISTANCES[:4]).tolist() == [[0, 0, 0, -torch.inf]]
    assert_exact_equal(windowed.angles(DISTANCES, 8), Rope().angles(DISTANCES, 8))
    assert not windowed.learned


def test_a_bias_of_positions_is_excluded_by_their_distance():
    fire = Fire().resolved(LENGTH)
    declared = fire.layer_weights(LayerSizes(4, 32, 8), torch.Generator().manual_seed(0))
    weights = {name: weight.value for name, weight in declared.items()}
    plain, windowed = (
        encoding.of_positions(DISTANCES[30:], DISTANCES, **weights)
        for encoding in (fire, Window(size=5).applied(fire, LENGTH))
    )
    for row, query in enumerate(range(30, 40)):
        assert windowed[:, row, : query - 4].eq(-torch.inf).all()
        assert_exact_equal(windowed[:, row, query - 4 :], plain[:, row, query - 4 :])


def test_keys_out_of_the_window_are_not_computed_where_keys_may_be_dropped():
    windowed = Window(size=64).applied(Rope(), LENGTH)
    backend = choose(
        windowed, device_type="cpu", dtype=torch.float32, head_size=8, training=False, dropout=0.0, epsilon=1e-6
    )
    query, key, value = (torch.randn(1, 2, 2048, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    bias = windowed.of_distance(torch.arange(2048.0)).expand(2, -1)
    work = Work()
    output = backend.attend(query, key, value, bias, scale=0.3, work=work)
    distance = torch.arange(2048)[:, None] - torch.arange(2048)
    scores = (0.3 * query.double() @ key.double().mT).masked_fill((distance < 0) | (distance >= 64), -torch.inf)
    torch.testing.assert_close(output.double(), scores.softmax(-1) @ value.double(), rtol=0, atol=1e-5)
    assert work.kept < 0.25


@pytest.mark.parametrize(
    "encoding",
    [Xpos(), *(trick.applied(Rope(), LENGTH) for trick in (Rerope(), SelfExtend(), SinkWindow(), Blockwise(), MESA))],
    ids=lambda encoding: encoding.name,
)
def test_scores_of_pairs_are_excluded_by_the_distance_of_their_tokens(encoding):
    plain, windowed = (scores_of(each) for each in (encoding, Window(size=7).applied(encoding, LENGTH)))
    distance = torch.arange(LENGTH_OF_PAIRS)[:, None] - torch.arange(LENGTH_OF_PAIRS)
    assert_exact_equal(windowed, plain.masked_fill(distance >= 7, -torch.inf))
    assert plain[..., distance >= 7].isfinite().any()


@pytest.mark.parametrize("trick", [Rerope(), SelfExtend(), SinkWindow(), MESA], ids=lambda trick: trick.name)
def test_a_window_comes_after_a_trick_that_changes_distances(trick):
    for encoding in (Rope(), Xpos()):
        windowed = Window(size=7).applied(encoding, LENGTH)
        assert "name the window after it" in str(trick.against(windowed))
        assert Window(size=7).against(trick.applied(encoding, LENGTH)) is None


def test_blocks_leave_distances_to_a_window():
    orders = ((Window(size=7), Blockwise(block=5)), (Blockwise(block=5), Window(size=7)))
    assert_exact_equal(*(scores_of(extrapolated(Rope(), order, LENGTH)) for order in orders))


@pytest.mark.parametrize("encoding", [Fox(), Cope(), Tape()])
def test_what_has_no_distance_to_exclude_is_refused(encoding):
    assert Window().against(encoding) is not None


def test_a_window_holds_the_query_itself():
    with pytest.raises(ValidationError):
        Window(size=0)
