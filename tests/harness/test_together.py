import pytest
from torch import distributed

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.harness.length import HarnessError
from megatron_mep.harness.together import found_by_all
from tests.support.distributed import run


def test_each_rank_has_what_it_finds() -> None:
    run(_find, 2)


def _find() -> None:
    assert found_by_all(lambda: distributed.get_rank() + 5) == distributed.get_rank() + 5


def test_mistakes_of_any_rank_are_told_by_all_of_them_once() -> None:
    run(_mistake, 3)


def _mistake() -> None:
    own, of_two = Mistake("a", distributed.get_rank(), "is", "do"), Mistake("b", 7, "is", "do")

    def find() -> None:
        if distributed.get_rank():
            raise ConfigError([of_two, own])

    with pytest.raises(HarnessError) as caught:
        found_by_all(find)
    assert [(mistake.key, mistake.value) for mistake in caught.value.mistakes] == [("b", 7), ("a", 1), ("a", 2)]
