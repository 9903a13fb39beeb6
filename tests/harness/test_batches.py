import pytest

from megatron_mep.harness.batches import batches

TEXTS = [(1,), (1, 2, 3), (4,), (5,), (4, 5, 6), (7, 8)]


def test_texts_of_one_length_are_together_the_longest_first() -> None:
    assert list(batches(TEXTS, 2)) == [[(1, 2, 3)], [(4, 5, 6)], [(7, 8)], [(1,), (4,)], [(5,)]]


@pytest.mark.parametrize(
    ("batch_tokens", "num_more", "sizes"), [(6, 0, [2, 1, 3]), (6, 1, [1, 1, 1, 3]), (1, 9, [1] * 6)]
)
def test_as_many_as_fit_with_what_follows_them(batch_tokens: int, num_more: int, sizes: list[int]) -> None:
    assert [len(batch) for batch in batches(TEXTS, batch_tokens, num_more)] == sizes
