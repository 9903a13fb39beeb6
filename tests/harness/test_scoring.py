"""Scores, with a model of three lines whose logits follow from all tokens that it has read."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.harness.scoring import Pair, scores

VOCABULARY = 7


def row_of(text: tuple[int, ...]) -> list[float]:
    """The logits after a text, by hand; those of the sum of its tokens are the largest."""
    return [1.5 * (token == sum(text) % VOCABULARY) + 0.1 * token * len(text) % 1 for token in range(VOCABULARY)]


class Model:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[list[tuple[int, ...]]] = []

    def __call__(self, tokens: Tensor) -> Tensor:
        texts = [tuple(row) for row in tokens.tolist()]
        self.given.append(texts)
        return torch.tensor([[row_of(text[: end + 1]) for end in range(len(text))] for text in texts])


def expected(pair: Pair) -> tuple[float, bool]:
    """Token by token, in fp64."""
    total, greedy, before = 0.0, True, pair.context
    for token in pair.continuation:
        row = row_of(before)
        total += row[token] - math.log(sum(map(math.exp, row)))
        greedy = greedy and row[token] == max(row)
        before = (*before, token)
    return total, greedy


PAIRS = [
    Pair((1, 2), (3,)),
    Pair((1, 2), (3, 6)),
    Pair((1,), (2, 4, 0)),
    Pair((1, 2), (5,)),
    Pair((6, 1, 2), (2,)),
    Pair((1, 2), (3, 5)),
]


@pytest.mark.parametrize("batch_tokens", [1, 6, 1000])
def test_each_pair_has_the_sum_over_its_continuation_alone(batch_tokens: int) -> None:
    found = scores(PAIRS, Model(), batch_tokens)
    assert [score for score, _ in found] == pytest.approx([expected(pair)[0] for pair in PAIRS], rel=1e-6)
    assert [greedy for _, greedy in found] == [expected(pair)[1] for pair in PAIRS]
    assert len({greedy for _, greedy in found}) == 2, "otherwise this shows little"


def test_what_several_pairs_read_is_read_once() -> None:
    model = Model()
    scores(PAIRS, model, 1000)
    assert sorted(text for batch in model.given for text in batch) == [(1, 2), (1, 2, 3), (1, 2, 4), (6, 1, 2)]


def test_no_pairs_are_no_work() -> None:
    model = Model()
    assert scores([], model, 10) == []
    assert model.given == []
