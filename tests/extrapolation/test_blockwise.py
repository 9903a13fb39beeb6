"""Blockwise causal attention, pair by pair."""

import pytest

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation.blockwise import Blockwise
from megatron_mep.extrapolation.mesa import Mesa
from megatron_mep.extrapolation.rerope import Rerope
from tests.encodings.examples import Fire, Halved
from tests.extrapolation.pairs import LENGTH, Seen, assert_scores, expected_scores, product, scores_of
from tests.support.tolerance import assert_exact_equal


def in_blocks(block: int) -> Seen:
    return lambda i, j: i - j if i // block - j // block <= 1 else None


@pytest.mark.parametrize("block", [1, 4, 7, 32])
def test_a_query_sees_its_own_block_and_the_one_before(block):
    masked = Blockwise(block=block).applied(Rope(), train_length=16)
    assert_scores(scores_of(masked), expected_scores(in_blocks(block)))


def test_blocks_are_half_the_training_length_so_that_up_to_it_nothing_changes():
    masked = Blockwise().applied(Rope(), train_length=16)
    assert_exact_equal(scores_of(masked), scores_of(Blockwise(block=8).applied(Rope(), train_length=1)))
    assert_scores(scores_of(masked, 16), expected_scores(lambda i, j: i - j, length=16))


def test_biases_and_nothing_at_all_are_masked_alike():
    assert_scores(scores_of(Blockwise(block=4).applied(Nope(), 16)), expected_scores(in_blocks(4), product))
    expected = expected_scores(in_blocks(4), product, bias=lambda head, distance: -(4.0 ** -(head + 1)) * distance)
    assert_scores(scores_of(Blockwise(block=4).applied(Alibi(), 16)), expected)


@pytest.mark.parametrize(
    "inner", [Halved(), Rerope(window=3).applied(Rope(), 16), Mesa(first=3, chunk=8).applied(Rope(), 16)]
)
def test_scores_of_pairs_are_masked_and_otherwise_kept(inner):
    whole, masked = scores_of(inner), scores_of(Blockwise(block=4).applied(inner, 16))
    for i in range(LENGTH):
        for j in range(i + 1):
            if i // 4 - j // 4 <= 1:
                assert_scores(masked[..., i, j], whole[..., i, j])
            else:
                assert masked[..., i, j].isneginf().all()


def test_it_needs_an_encoding_of_pairs():
    against = Blockwise().against(Fire())
    assert against == "needs an encoding that acts on a pair by the places of its query and key, or nope"
