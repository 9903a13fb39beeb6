from torch import distributed

from megatron_mep.harness.batches import Tokens
from megatron_mep.harness.share import Share, share_of
from tests.support.distributed import joined, run

TEXTS: list[Tokens] = [(1, 2), (3,), (1, 2), (4, 5, 6), (7,), (3,)]
REQUESTS = ["a", "b", "c", "d", "e", "f"]


def test_one_rank_answers_all_in_their_order() -> None:
    assert Share().answered(REQUESTS, TEXTS, lambda own: [request.upper() for request in own]) == list("ABCDEF")


def test_ranks_answer_each_request_once_and_have_all_answers() -> None:
    run(_shared, 3)


def _shared() -> None:
    share = share_of(joined())
    answers = share.answered(REQUESTS, TEXTS, lambda own: [(request, share.rank) for request in own])
    assert [request for request, _ in answers] == REQUESTS
    # those about one text are one rank's; by length, then in order: (4, 5, 6), (1, 2), (3,), (7,)
    assert [rank for _, rank in answers] == [1, 2, 1, 0, 0, 2]


def test_a_rank_may_have_nothing_to_answer() -> None:
    run(_idle, 2)


def _idle() -> None:
    share = share_of(joined())
    asked: list[str] = []
    answers = share.answered(["a"], [(1,)], lambda own: asked.extend(own) or own)  # type: ignore[func-returns-value]
    assert answers == ["a"]
    assert len(asked) == (distributed.get_rank() == 0)
