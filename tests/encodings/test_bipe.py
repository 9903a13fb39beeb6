"""BiPE, against loops over tokens, and in its limits."""

import cmath

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.bipe import BipeAlibi, BipeRope
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from tests.encodings.oracle import fp64

SIZES = LayerSizes(num_heads=8, hidden_size=6, head_size=4)
TOKENS = torch.tensor([[5, 1, 9, 5, 5, 0, 9, 9], [9, 9, 1, 2, 3, 4, 0, 5]])
ENDS = (9, 5)
NUMBERS = [[0, 1, 1, 2, 3, 4, 4, 5], [0, 1, 2, 2, 2, 2, 2, 2]]
"""Of the segments of `TOKENS`, counted by hand."""
IN_SEGMENT = [[0, 0, 1, 0, 0, 0, 1, 0], [0, 0, 0, 1, 2, 3, 4, 5]]


def random(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tracks(encoding: BipeRope | BipeAlibi, tokens: Tensor = TOKENS) -> Tensor:
    return encoding.places(tokens, training=False).double()


def test_tracks_are_those_counted_by_hand() -> None:
    assert tracks(BipeRope(ends=ENDS)).tolist() == [IN_SEGMENT, NUMBERS]


def test_vectors_are_those_of_the_place_in_the_segment() -> None:
    encoding = BipeAlibi(ends=ENDS, num_positions=3)
    table = encoding.embedding_weights(SIZES, torch.Generator())["table"].value
    added = encoding.added(tracks(encoding), 6, table=table)
    for sample, places in enumerate(IN_SEGMENT):
        assert added[sample].equal(table[[min(place, 2) for place in places]].double())


def test_queries_turn_by_the_number_of_the_segment() -> None:
    encoding = BipeRope(ends=ENDS, base=100.0)
    heads = random(8, 2, 3, 4)
    turned = encoding.turned(heads, tracks(encoding))
    for sample, numbers in enumerate(NUMBERS):
        for token, number in enumerate(numbers):
            for head in range(3):
                vector = heads[token, sample, head].tolist()
                pairs = [
                    complex(vector[m], vector[m + 2]) * cmath.exp(1j * number * 100.0 ** (-2 * m / 4)) for m in range(2)
                ]
                expected = [pair.real for pair in pairs] + [pair.imag for pair in pairs]
                torch.testing.assert_close(turned[token, sample, head], fp64(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("factor", [96.0, 2.0])
def test_scores_fall_with_the_segments_between(factor: float) -> None:
    encoding = BipeAlibi(ends=ENDS, factor=factor)
    query, key, position = random(2, 8, 8, 4), random(2, 2, 8, 4, seed=1), tracks(encoding)
    slope = encoding.weights(8, torch.Generator())["slope"]
    assert not slope.learned
    scores = encoding.of_pairs(query, key, position, position, slope=slope.value)
    for sample, numbers in enumerate(NUMBERS):
        for head in range(8):
            for i in range(8):
                for j in range(i + 1):
                    product = float(query[sample, head, i] @ key[sample, head // 4, j])
                    expected = product - factor * 2.0 ** -(head + 1) * (numbers[i] - numbers[j])
                    assert float(scores[sample, head, i, j]) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_without_ends_it_is_learned_absolute_alone() -> None:
    rope, alibi = BipeRope(ends=(), num_positions=5), BipeAlibi(ends=(), num_positions=5)
    absolute = LearnedAbsolute(num_positions=5)
    position = tracks(rope)
    table = rope.embedding_weights(SIZES, torch.Generator().manual_seed(3))["table"].value
    assert table.equal(absolute.embedding_weights(SIZES, torch.Generator().manual_seed(3))["table"].value)
    expected = absolute.added(torch.arange(8.0), 6, table=table).double()
    for encoding in (rope, alibi):
        assert encoding.added(position, 6, table=table).equal(expected.expand(2, -1, -1))
    heads = random(8, 2, 3, 4)
    assert rope.turned(heads, position).equal(heads)
    query, key = random(2, 8, 8, 4), random(2, 8, 8, 4, seed=1)
    slope = alibi.weights(8, torch.Generator())["slope"].value
    assert alibi.of_pairs(query, key, position, position, slope=slope).equal(query @ key.mT)
