"""CoPE's scores, pair by pair in Python's floats."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.plain import plain_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.encodings.cope import Cope
from tests.encodings.content import HEAD_SIZE, HEADS, SIZES, initial, random
from tests.support.tolerance import assert_exact_equal

LENGTH = 9
SCALE = HEAD_SIZE**-0.5


def mixed(encoding: Cope, table: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The new scores of queries and keys `[B, H, S, D]`, zero in the future."""
    scaled, position = SCALE * query, torch.arange(query.size(2), dtype=query.dtype)
    return encoding.of_scores((scaled @ key.mT).tril(), scaled, position, position, embedding=table).tril()


def expected(encoding: Cope, table: Tensor, query: Tensor, key: Tensor, i: int, j: int) -> float:
    """The paper's score of query i and key j, of one head's `[S, D]`."""

    def dot(one: Tensor, other: Tensor) -> float:
        return math.fsum(x * y for x, y in zip(one.tolist(), other.tolist(), strict=True))

    gates = [1 / (1 + math.exp(-SCALE * dot(query[i], key[t]))) for t in range(j, i + 1)]
    place = min(math.fsum(gates), table.size(1) - 1)
    share = place - math.floor(place)
    at = [dot(query[i], table[:, whole]) for whole in (math.floor(place), math.ceil(place))]
    added = (1 - share) * at[0] + share * at[1]
    return SCALE * dot(query[i], key[j]) + added * (SCALE if encoding.divided else 1)


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("num_positions", [2, 4, 16])
def test_scores_are_the_papers(num_positions: int, divided: bool) -> None:
    encoding = Cope(num_positions=num_positions, divided=divided)
    table, query, key = random(HEAD_SIZE, num_positions, seed=1), *random(2, 2, HEADS, LENGTH, HEAD_SIZE)
    scores = mixed(encoding, table, query, key)
    for sample in range(2):
        for head in range(HEADS):
            for i in range(LENGTH):
                for j in range(i + 1):
                    one = expected(encoding, table, query[sample, head], key[sample, head], i, j)
                    assert float(scores[sample, head, i, j]) == pytest.approx(one, rel=1e-12, abs=1e-12)


def test_the_initial_table_is_no_encoding() -> None:
    encoding = Cope(num_positions=4)
    table, query, key, value = initial(encoding)["embedding"], *random(3, 2, HEADS, LENGTH, HEAD_SIZE)
    assert not table.any()
    assert_exact_equal(mixed(encoding, table, query, key), (SCALE * query @ key.mT).tril())

    def mix(scores: Tensor, query: Tensor, at_query: Tensor, at_key: Tensor) -> Tensor:
        return encoding.of_scores(scores, query, at_query, at_key, embedding=table)

    ours = score_mix_attention(query, key, value, mix, scale=SCALE)
    torch.testing.assert_close(ours, plain_attention(query, key, value, scale=SCALE), rtol=1e-12, atol=1e-12)


def test_gates_that_are_all_open_count_tokens() -> None:
    """Then it is a relative encoding: the table's row at distance d is d + 1, the query's own token counting too."""
    query, key = (torch.full((1, 1, LENGTH, HEAD_SIZE), 20.0).double() for _ in range(2))
    table = random(HEAD_SIZE, LENGTH + 1, seed=1)
    scores = mixed(Cope(num_positions=LENGTH + 1), table, query, key)[0, 0]
    for i in range(LENGTH):
        for j in range(i + 1):
            one = SCALE * (query[0, 0, i] @ key[0, 0, j] + query[0, 0, i] @ table[:, i - j + 1])
            assert float(scores[i, j]) == pytest.approx(float(one), rel=1e-12)


def test_tokens_to_come_are_not_counted() -> None:
    """Scores in the future are given as zero, of which the gate would be half open."""
    encoding, table = Cope(num_positions=16), random(HEAD_SIZE, 16, seed=1)
    query, key = random(2, 1, 1, LENGTH, HEAD_SIZE)
    whole = mixed(encoding, table, query, key)
    for length in (1, 5):
        alone = mixed(encoding, table, query[:, :, :length], key[:, :, :length])
        torch.testing.assert_close(alone, whole[:, :, :length, :length], rtol=1e-12, atol=1e-12)


def test_far_keys_share_the_last_position_and_gradients_stay_finite() -> None:
    encoding, length = Cope(num_positions=8), 131_072
    query, key = torch.ones(1, 1, 1, 4), torch.ones(1, 1, length, 4) / 4
    table = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    position = torch.arange(length, dtype=torch.float32)
    scores = encoding.of_scores(query @ key.mT, query, position[-1:], position, embedding=table)
    assert scores.isfinite().all()
    added = (scores - query @ key.mT)[0, 0, 0]
    torch.testing.assert_close(added[: length - 100], (query @ table)[0, 0, 0, -1:].expand(length - 100))
    (scores * torch.linspace(-1, 1, length)).sum().backward()
    assert table.grad is not None
    assert table.grad.isfinite().all()
    assert table.grad.any(dim=0).all()


def test_the_table_follows_the_training_length_unless_it_is_stated() -> None:
    assert Cope().resolved(512) == Cope(num_positions=513)
    assert Cope(num_positions=64).resolved(512) == Cope(num_positions=64)
    declared = Cope().resolved(7).layer_weights(SIZES, torch.Generator())["embedding"]
    assert declared.value.shape == (HEAD_SIZE, 8)
    assert declared.learned
    assert not declared.per_head
    with pytest.raises(AssertionError, match="follows the training length"):
        Cope().layer_weights(SIZES, torch.Generator())
    assert Cope().learned
    assert Cope().mistakes(SIZES) == []
