import pytest

from megatron_mep.harness.length import HarnessError, MaxLength

CONTEXTS = [(1, 2, 3), (4, 5), (6, 7, 8, 9)]
NUM_MORE = [1, 0, 2]


def test_what_fits_stays_whole() -> None:
    assert MaxLength(6).fitted(CONTEXTS, NUM_MORE) == CONTEXTS
    assert MaxLength(1).fitted([], []) == []


def test_what_is_longer_is_told_with_the_length_that_it_needs() -> None:
    with pytest.raises(HarnessError) as caught:
        MaxLength(3).fitted(CONTEXTS, NUM_MORE)
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.value) == ("--max-length", 3)
    assert mistake.rule == "would cut 4 tokens off 2 of 3 requests"
    assert "6 or more" in mistake.remedy
    assert "--truncate" in mistake.remedy


def test_contexts_are_cut_from_the_left_where_the_user_says_so() -> None:
    assert MaxLength(3, truncate=True).fitted(CONTEXTS, NUM_MORE) == [(2, 3), (4, 5), (9,)]


@pytest.mark.parametrize("truncate", [False, True])
def test_a_continuation_is_never_cut(truncate: bool) -> None:
    with pytest.raises(HarnessError, match="leaves no room for a context: a continuation takes 2 tokens; set it to 6"):
        MaxLength(2, truncate).fitted(CONTEXTS, NUM_MORE)
