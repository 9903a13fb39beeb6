"""What can be read of a wrong tree, and the rules between sections that are still checked on it."""

from typing import Any

import pytest

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.salvage import salvage
from megatron_mep.run import RunConfig, run_of
from tests.support.runs import run_tree


def mistakes(tree: dict[str, Any]) -> list[Mistake]:
    with pytest.raises(ConfigError) as told:
        run_of(tree)
    return list(told.value.mistakes)


def test_five_different_mistakes_are_told_at_once() -> None:
    tree = run_tree(
        model={"num_attention_heads": 8, "linear_biass": True, "encoding": {"name": "alibbi"}},
        training={"steps": "many", "micro_batch_size": 0},
        parallel={"tensor": 3},
    )
    assert {(mistake.key, mistake.rule) for mistake in mistakes(tree)} >= {
        ("model.linear_biass", "is not a known key"),
        ("model.encoding.name", "is not a known choice"),
        ("training.steps", "must be a valid integer, unable to parse string as an integer"),
        ("training.micro_batch_size", "must be greater than 0"),
        ("parallel.tensor", "must divide model.num_attention_heads=8"),
    }


def test_rules_are_checked_on_misspelt_keys_as_they_were_meant() -> None:
    tree = run_tree(model={"num_attention_head": 5})
    del tree["model"]["num_attention_heads"]
    assert [mistake.key for mistake in mistakes(tree)] == ["model.num_attention_head", "model.num_attention_heads"]
    assert "must divide model.hidden_size=16" in mistakes(tree)[1].rule


def test_rules_that_read_a_wrong_key_stay_silent() -> None:
    tree = run_tree(model={"num_attention_head": "four"}, parallel={"tensor": 2})
    del tree["model"]["num_attention_heads"]
    assert [mistake.key for mistake in mistakes(tree)] == ["model.num_attention_head", "model.num_attention_heads"]
    assert "valid integer" in mistakes(tree)[1].rule, "and no rule speaks of the heads that fill the gap"


def test_rules_that_read_a_section_stay_silent_where_a_key_in_it_is_wrong() -> None:
    tree = run_tree(training={"schedule": {"name": "wsd", "decay_steps": "half", "warmup_steps": 99}})
    assert [mistake.key for mistake in mistakes(tree)] == ["training.schedule.decay_steps"]


def test_each_wrong_item_of_a_list_is_put_aside() -> None:
    kernels = [
        {"kernel": "gauss"},
        {"kernel": "gaus"},
        {"kernel": "gaussian", "width": 2},
        {"kernel": "log", "weight": -1},
        {"width": 3},
    ]
    found = salvage(RunConfig, run_tree(model={"encoding": {"name": "mep", "kernels": kernels}}))
    assert found is not None
    assert [kernel.kernel for kernel in found.model.encoding.kernels] == ["gaussian", "log"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("betas", [[0.9], [0.9, 0.95, 0.99], [0.9, "x"], 0.9])
def test_a_list_of_the_wrong_length_hides_no_rule(betas: object) -> None:
    told = mistakes(run_tree(training={"optimizer": {"betas": betas}}, model={"num_attention_heads": 5}))
    assert told[0].key.startswith("training.optimizer.betas")
    assert [mistake.key for mistake in told[1:]] == ["model.num_attention_heads"]


def test_the_tree_stays_as_it_was() -> None:
    tree = run_tree(model={"num_layer": 2, "encoding": {"name": "alibbi"}}, training={"steps": "many"})
    assert salvage(RunConfig, tree) is not None
    assert tree == run_tree(model={"num_layer": 2, "encoding": {"name": "alibbi"}}, training={"steps": "many"})


@pytest.mark.parametrize("gone", ["name", "model", "training"])
def test_what_is_required_and_missing_is_filled(gone: str) -> None:
    tree = run_tree(parallel={"tensor": 2})
    del tree[gone]
    found = salvage(RunConfig, tree)
    assert found is not None
    assert found.parallel.tensor == 2


@pytest.mark.parametrize(
    "source", [{"kind": "files"}, {"kind": "hub"}, {"kind": "files", "paths": 3}, {"kind": "hub", "name": None}]
)
def test_a_gap_in_one_section_hides_no_rule_of_another(source: dict[str, Any]) -> None:
    told = mistakes(run_tree(data={"source": source}, model={"num_attention_heads": 5}))
    assert [mistake.key for mistake in told][1:] == ["model.num_attention_heads"]


@pytest.mark.parametrize("name", ["nowhere:Mine", "json:JSONDecoder", ".x:Y", ":", "a:b:c"])
def test_an_encoding_of_ones_own_that_cannot_be_had_hides_no_other_mistake(name: str) -> None:
    told = mistakes(run_tree(model={"encoding": {"name": name}}, parallel={"tensor": 3}))
    assert [mistake.key for mistake in told] == ["model.encoding.name", "parallel.tensor", "parallel.tensor"]


def test_a_valid_tree_is_read_whole() -> None:
    assert salvage(RunConfig, run_tree()) == run_of(run_tree())
