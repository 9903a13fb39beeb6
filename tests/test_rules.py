"""Every rule between keys: a run that breaks it, one that just holds, and the remedy, which is accepted."""

import pytest

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.loader import apply_overrides
from megatron_mep.rules import RULES, batches_fit, broken_rules
from megatron_mep.run import RunConfig, run_of
from tests.rule_cases import CASES, GROUPS_OF_FOUR, Case, Tree, encoding
from tests.support.runs import run_tree

parametrised = pytest.mark.parametrize("case", CASES, ids=[f"{case.rule.strip('_')}-{case.key}" for case in CASES])


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.broken.__name__ for rule in RULES}


@parametrised
def test_a_broken_rule_is_told_alone(case: Case) -> None:
    assert [mistake.key for mistake in mistakes_of(case.breaks)] == [case.key]


@parametrised
def test_it_is_found_by_the_rule_of_that_name(case: Case) -> None:
    run = RunConfig.model_validate(run_tree(**case.breaks))
    assert [rule.broken.__name__ for rule in RULES if list(rule.broken(run))] == [case.rule]


@parametrised
def test_what_just_holds_is_accepted(case: Case) -> None:
    run_of(run_tree(**case.holds))


@parametrised
def test_the_remedy_is_accepted(case: Case) -> None:
    (mistake,) = mistakes_of(case.breaks)
    run_of(apply_overrides(run_tree(**case.breaks), [case.remedy(mistake.remedy)]))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"model": {"num_attention_heads": 5}}, "try 4 heads"),
        ({"model": {"num_query_groups": 3}}, "try 2"),
        ({"model": GROUPS_OF_FOUR, "parallel": {"tensor": 6}}, "try 4"),
        ({"model": encoding("rope") | {"hidden_size": 12}}, "try 16"),
        ({"training": {"micro_batch_size": 4, "global_batch_size": 6}}, "try 8"),
    ],
)
def test_a_remedy_is_near_what_was_stated(changes: Tree, remedy: str) -> None:
    assert [mistake.remedy for mistake in mistakes_of(changes)] == [remedy]


@parametrised
def test_a_rule_is_silent_where_a_key_that_it_reads_is_wrong(case: Case) -> None:
    run = RunConfig.model_validate(run_tree(**case.breaks))
    (rule,) = [rule for rule in RULES if rule.broken.__name__ == case.rule]
    assert case.key.startswith(tuple(rule.reads)) or case.key in rule.reads
    for key in rule.reads:
        for wrong in (key, f"{key}.inside", f"{key}[0]", key.partition(".")[0]):
            assert not broken_rules(run, (wrong,)), f"{wrong} is wrong"
    assert broken_rules(run, ("logging.interval", f"{rule.reads[0]}_other")), "other keys hide nothing"


def test_the_smallest_run_breaks_no_rule() -> None:
    assert broken_rules(run_of(run_tree())) == []


def test_more_heads_than_width_are_told_without_a_traceback() -> None:
    told = mistakes_of({"model": encoding("rope") | {"num_attention_heads": 32}})
    assert [mistake.key for mistake in told] == ["model.num_attention_heads"]


@pytest.mark.parametrize(
    ("changes", "world_size", "key", "remedy"),
    [
        ({"parallel": {"tensor": 2}}, 3, "parallel.tensor", "set it to 1, or start 2 or 4 processes"),
        ({"training": {"global_batch_size": 6}}, 4, "training.global_batch_size", "try 8"),
        ({"training": {"global_batch_size": 6, "micro_batch_size": 2}}, 2, "training.global_batch_size", "try 8"),
        ({"training": {"global_batch_size": 6}, "parallel": {"tensor": 4}}, 16, "training.global_batch_size", "try 8"),
        (
            {
                "training": {"global_batch_size": 6},
                "model": {"num_layers": 4},
                "parallel": {"pipeline": 2, "virtual_pipeline": 2},
            },
            4,
            "training.global_batch_size",
            "try 8, or set parallel.virtual_pipeline to 1",
        ),
    ],
)
def test_a_batch_that_the_ranks_cannot_share_is_told(changes: Tree, world_size: int, key: str, remedy: str) -> None:
    (mistake,) = batches_fit(run_of(run_tree(**changes)), world_size)
    assert (mistake.key, mistake.remedy) == (key, remedy)


@pytest.mark.parametrize(("tensor", "world_size"), [(1, 1), (1, 2), (2, 2), (2, 4), (4, 8)])
def test_a_batch_that_the_ranks_can_share_is_accepted(tensor: int, world_size: int) -> None:
    assert batches_fit(run_of(run_tree(parallel={"tensor": tensor})), world_size) == []


def mistakes_of(changes: Tree) -> list[Mistake]:
    with pytest.raises(ConfigError) as told:
        run_of(run_tree(**changes))
    return list(told.value.mistakes)
