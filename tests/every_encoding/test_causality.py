"""Under no encoding does a token know what comes after it, nor how much."""

import pytest
import torch

from megatron_mep.encodings.placement import Placed
from tests.every_encoding.case import Case
from tests.every_encoding.layer import HEAD_SIZE, VOCABULARY, attend, random, vectors_of, weights_of

LENGTH = 17


def test_tokens_to_come_change_nothing(case: Case) -> None:
    num_heads = case.heads[0]
    weights = weights_of(case.encoding, num_heads, torch.float64)
    hidden = random(LENGTH, 2, num_heads * HEAD_SIZE)
    whole = attend(case.encoding, hidden, weights, num_heads)
    for length in (1, 2, LENGTH - 1):
        changed = torch.cat((hidden[:length], hidden[length:] + 1))
        again = attend(case.encoding, changed, weights, num_heads)
        torch.testing.assert_close(again[:, :, :length], whole[:, :, :length], rtol=1e-12, atol=1e-12)


@pytest.mark.cases_that.with_args(lambda case: case.decodes)
def test_the_number_of_tokens_to_come_changes_nothing(case: Case) -> None:
    """A formula may see tokens to come by how many they are alone: divided by all, say."""
    num_heads = case.heads[0]
    weights = weights_of(case.encoding, num_heads, torch.float64)
    hidden = random(LENGTH, 1, num_heads * HEAD_SIZE)
    whole = attend(case.encoding, hidden, weights, num_heads)
    vectors = vectors_of(case.encoding, num_heads, LENGTH)
    for length in (1, 2, LENGTH - 1):
        part = attend(case.encoding, hidden[:length], weights, num_heads)
        torch.testing.assert_close(part, whole[:, :, :length], rtol=1e-12, atol=1e-12)
        if vectors is not None:
            alone = vectors_of(case.encoding, num_heads, length)
            torch.testing.assert_close(alone, vectors[..., :length, :], rtol=1e-12, atol=1e-12)


@pytest.mark.kind.with_args(Placed)
def test_a_tokens_places_follow_from_those_before_it(case: Case) -> None:
    assert isinstance(case.encoding, Placed)
    tokens = torch.randint(VOCABULARY, (3, 64), generator=torch.Generator().manual_seed(0))
    whole = case.encoding.places(tokens, training=False)
    assert whole.dtype == torch.int64
    assert whole.shape[1:] == tokens.shape
    assert (whole >= 0).all()
    for length in (1, 2, 33):
        assert case.encoding.places(tokens[:, :length], training=False).equal(whole[..., :length])
