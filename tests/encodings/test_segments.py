"""Segments read off tokens, against a loop."""

import pytest
import torch
from pydantic import ValidationError

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.bipe import BipeAlibi, BipeRope
from megatron_mep.encodings.hirope import Hirope

SPELLINGS = [b"", b"a", b".", b" end.", b"\n", b"\n\n  ", b".5", b"..", b"e.g", b"a\nb"]
SENTENCES, LINES = (0, 2, 3, 4, 5, 7, 9), (0, 4, 5, 9)


def segments(tokens: list[int], ends: set[int]) -> tuple[list[int], list[int]]:
    """The place in the segment and its number of every token, one after another."""
    places, numbers = [], []
    place = number = 0
    for token in tokens:
        places.append(place)
        numbers.append(number)
        place, number = (0, number + 1) if token in ends else (place + 1, number)
    return places, numbers


@pytest.mark.parametrize("ends", [(), (3,), (0, 3), (0, 1, 2, 3, 4)])
def test_a_segment_ends_with_its_token(ends: tuple[int, ...]) -> None:
    tokens = torch.randint(5, (4, 40), generator=torch.Generator().manual_seed(2))
    place, number = BipeRope(ends=ends).places(tokens, training=True)
    for sample, row in enumerate(tokens.tolist()):
        assert (place[sample].tolist(), number[sample].tolist()) == segments(row, {*ends})


def test_a_single_token_is_a_segment_begun() -> None:
    assert BipeRope(ends=(3,)).places(torch.tensor([[3]]), training=False).tolist() == [[[0]], [[0]]]


def test_ends_follow_from_the_vocabulary() -> None:
    assert BipeRope().reading(SPELLINGS).ends == SENTENCES
    assert BipeAlibi().reading(SPELLINGS).ends == SENTENCES
    assert Hirope(segments_by="line").reading(SPELLINGS).ends == LINES
    assert Hirope().reading(SPELLINGS) == Hirope()


def test_stated_ends_stay() -> None:
    assert BipeRope(ends=(1,)).reading(SPELLINGS).ends == (1,)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((3, 10), r"ends = \[3, 10\]: must name tokens of the vocabulary, ids from 0 to 9, .*; set it to \[3\]"),
        ((10,), "leave it out for those whose text ends a segment"),
        ((), "and at least one; leave it out"),
    ],
)
def test_ends_that_end_nothing_are_told(ends: tuple[int, ...], told: str) -> None:
    for encoding in (BipeRope(ends=ends), BipeAlibi(ends=ends), Hirope(segments_by="line", ends=ends)):
        with pytest.raises(ConfigError, match=told):
            encoding.reading(SPELLINGS)
    with pytest.raises(ValidationError):
        BipeRope(ends=(-1,))


def test_a_vocabulary_without_ends_is_told() -> None:
    with pytest.raises(ConfigError, match=r"model\.encoding\.ends: finds no token .*; state the ids"):
        BipeRope().reading([b"a", b"b"])
