import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.config.loader import validate
from megatron_mep.parallel.config import ParallelConfig


def test_data_parallel_size_is_what_tensor_parallelism_leaves_of_the_world():
    assert ParallelConfig().data(6) == 6
    assert ParallelConfig(tensor=2, sequence=True).data(6) == 3
    assert ParallelConfig(tensor=6).data(6) == 1


@pytest.mark.parametrize(
    ("tensor", "world_size", "remedy"),
    [
        (4, 6, "set it to 3, or start 4 or 8 processes"),
        (3, 8, "set it to 2, or start 6 or 9 processes"),
        (8, 1, "set it to 1, or start 8 processes"),
    ],
)
def test_an_indivisible_world_names_the_nearest_sizes_that_work(tensor: int, world_size: int, remedy: str):
    with pytest.raises(ConfigError) as told:
        ParallelConfig(tensor=tensor).data(world_size)
    (mistake,) = told.value.mistakes
    assert (mistake.key, mistake.value, mistake.remedy) == ("parallel.tensor", tensor, remedy)


def test_stages_leave_less_of_the_world_to_data_ranks():
    assert ParallelConfig(pipeline=4).data(8) == 2
    with pytest.raises(ConfigError) as told:
        ParallelConfig(tensor=2, pipeline=4).data(12)
    (mistake,) = told.value.mistakes
    assert (mistake.key, mistake.value, mistake.remedy) == (
        "parallel.pipeline",
        4,
        "set it to 3, or start 8 or 16 processes",
    )


def test_context_ranks_leave_less_of_the_world_to_data_ranks():
    assert ParallelConfig(context=2).data(6) == 3
    assert ParallelConfig(tensor=2, context=4).data(16) == 2


@pytest.mark.parametrize(
    ("tensor", "context", "world_size", "key", "remedy"),
    [
        (2, 4, 12, "parallel.context", "set it to 3, or start 8 or 16 processes"),
        (2, 2, 2, "parallel.context", "set it to 1, or start 4 processes"),
        (3, 2, 4, "parallel.tensor", "set it to 2, or start 6 processes"),
        (2, 4, 9, "parallel.tensor", "start 8 or 16 processes"),
    ],
)
def test_an_indivisible_world_names_the_axis_that_does_not_fit(
    tensor: int, context: int, world_size: int, key: str, remedy: str
):
    with pytest.raises(ConfigError) as told:
        ParallelConfig(tensor=tensor, context=context).data(world_size)
    (mistake,) = told.value.mistakes
    assert (mistake.key, mistake.remedy) == (key, remedy)


def test_sequences_divide_into_two_chunks_a_rank_and_each_share_over_tensor_ranks():
    assert ParallelConfig().sequence_multiple == ParallelConfig(tensor=4).sequence_multiple == 1
    assert ParallelConfig(tensor=4, sequence=True).sequence_multiple == 4
    assert ParallelConfig(tensor=4, context=3).sequence_multiple == 6
    assert ParallelConfig(tensor=4, context=3, sequence=True).sequence_multiple == 12
    assert ParallelConfig(tensor=3, context=2, sequence=True).sequence_multiple == 12


@pytest.mark.parametrize(
    ("tree", "key", "rule"),
    [
        ({"context": 0}, "context", "greater than 0"),
        ({"context": 2, "context_exchange": "gather"}, "context_exchange", "is not a known choice"),
        ({"pipeline": 0}, "pipeline", "greater than 0"),
        ({"sequence": True}, "sequence", "needs tensor > 1"),
        ({"tensor": 0}, "tensor", "greater than 0"),
        ({"tensor": 0, "sequence": True}, "tensor", "greater than 0"),
    ],
)
def test_what_cannot_be_had_is_told_at_its_key(tree: dict[str, int], key: str, rule: str):
    with pytest.raises(ConfigError) as told:
        validate(ParallelConfig, tree)
    (mistake,) = told.value.mistakes
    assert mistake.key == key
    assert rule in mistake.rule


def test_sequence_parallelism_is_accepted_with_several_tensor_ranks():
    assert validate(ParallelConfig, {"tensor": 2, "sequence": True}).sequence
