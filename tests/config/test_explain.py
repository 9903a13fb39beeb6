"""What a user is told of a wrong run file: the key as written, the value, the rule and the remedy."""

from typing import Any

import pytest

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.loader import validate
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.run import RunConfig
from tests.support.runs import run_tree


def mistakes(tree: dict[str, Any]) -> list[Mistake]:
    with pytest.raises(ConfigError) as told:
        validate(RunConfig, tree)
    return list(told.value.mistakes)


def told(tree: dict[str, Any]) -> list[str]:
    return [str(mistake) for mistake in mistakes(tree)]


def encoded(*kernels: dict[str, Any]) -> dict[str, Any]:
    return run_tree(model={"encoding": {"name": "mep", "kernels": list(kernels)}})


def test_an_unknown_key_names_what_was_probably_meant() -> None:
    assert told(run_tree(model={"linear_biass": True})) == [
        "model.linear_biass = True: is not a known key; did you mean 'linear_bias'?"
    ]


def test_an_unknown_key_that_resembles_nothing_lists_what_is_known() -> None:
    (mistake,) = mistakes(run_tree(checkpoint={"xyzzy": 1}))
    assert mistake == Mistake(
        "checkpoint.xyzzy", 1, "is not a known key", "use one of interval, keep, compare_replicas, asynchronous"
    )


def test_a_misspelt_required_key_is_one_mistake() -> None:
    tree = run_tree(model={"num_layer": 2})
    del tree["model"]["num_layers"]
    assert told(tree) == ["model.num_layer = 2: is not a known key; did you mean 'num_layers'?"]


def test_what_stands_under_a_misspelt_key_is_checked_as_it_was_meant() -> None:
    tree = run_tree(training={"stesp": "many"})
    del tree["training"]["steps"]
    tree["trainning"] = tree.pop("training")
    assert [(mistake.key, mistake.rule) for mistake in mistakes(tree)] == [
        ("trainning", "is not a known key"),
        ("training.stesp", "is not a known key"),
        ("training.steps", "must be a valid integer, unable to parse string as an integer"),
    ]


def test_a_misspelt_key_beside_the_right_one_means_nothing() -> None:
    assert [mistake.key for mistake in mistakes(run_tree(model={"num_layer": "x"}))] == ["model.num_layer"]
    told_of = mistakes(run_tree(model={"num_layers": "y", "num_layer": 2}))
    assert sorted((mistake.key, mistake.value) for mistake in told_of) == [
        ("model.num_layer", 2),
        ("model.num_layers", "y"),
    ]


def test_two_keys_misspelt_alike_are_both_told() -> None:
    tree = run_tree(model={"num_layer": 2, "num_layerz": 3})
    del tree["model"]["num_layers"]
    assert sorted(mistake.key for mistake in mistakes(tree)) == ["model.num_layer", "model.num_layerz"]


def test_a_missing_key_is_told_with_its_documentation() -> None:
    tree = run_tree()
    del tree["training"]["optimizer"]["learning_rate"]
    assert told(tree) == [
        "training.optimizer.learning_rate: is required; state it (The highest learning rate of the schedule.)"
    ]


def test_a_wrong_type_is_told_in_words() -> None:
    (mistake,) = mistakes(run_tree(training={"steps": 1.5}))
    assert (mistake.key, mistake.value) == ("training.steps", 1.5)
    assert mistake.rule == "must be a valid integer, got a number with a fractional part"
    assert mistake.remedy == "correct it (Optimizer steps of the whole run.)"


def test_a_wrong_choice_names_the_nearest() -> None:
    assert told(run_tree(training={"precision": "bf61"})) == [
        "training.precision = 'bf61': is not a known choice; did you mean 'bf16'?"
    ]
    assert told(run_tree(training={"zero_stage": 9})) == [
        "training.zero_stage = 9: is not a known choice; use one of 0, 1, 2, 3"
    ]


def test_a_known_type_that_is_not_offered_is_told_why() -> None:
    (mistake,) = mistakes(run_tree(training={"precision": "fp16"}))
    assert (mistake.key, mistake.value) == ("training.precision", "fp16")
    assert "needs the loss to be scaled" in mistake.rule


def test_a_wrong_name_of_a_union_is_told_at_the_key_that_chooses() -> None:
    assert told(run_tree(model={"encoding": {"name": "alibbi"}})) == [
        "model.encoding.name = 'alibbi': is not a known choice; did you mean 'alibi'?"
    ]
    assert told(run_tree(model={"encoding": {"name": 5}})) == [
        "model.encoding.name = '5': is not a known choice; did you mean 't5'?"
    ]
    assert told(run_tree(data={"source": {"kind": "fils"}})) == [
        "data.source.kind = 'fils': is not a known choice; did you mean 'files'?"
    ]


def test_a_union_without_a_choice_says_which_key_and_which_values() -> None:
    assert told(encoded({"width": 2})) == [
        "model.encoding.kernels[0].kernel: is required; state one of exponential, gaussian, cauchy, log, power, 3log"
    ]
    assert told(run_tree(model={"encoding": {"nmae": "alibi"}})) == [
        "model.encoding.nmae = 'alibi': is not a known key; did you mean 'name'?"
    ]


def test_keys_beside_a_missing_choice_are_checked_too() -> None:
    assert [str(mistake) for mistake in mistakes(encoded({"widht": 2}))] == [
        "model.encoding.kernels[0].widht = 2: is not a known key; did you mean 'width'?",
        "model.encoding.kernels[0].kernel: is required; state one of exponential, gaussian, cauchy, log, power, 3log",
    ]


@pytest.mark.parametrize("value", ["alibi", None, 3, ["alibi"]])
def test_a_value_in_a_sections_stead_is_told_how_to_write_it(value: object) -> None:
    (mistake,) = mistakes(run_tree(model={"encoding": value}))
    assert (mistake.key, mistake.value) == ("model.encoding", value)
    assert mistake.rule == "must hold keys and values"
    assert "model.encoding.name=" in mistake.remedy
    (mistake,) = mistakes(run_tree(training=value))
    assert mistake.key == "training"
    assert "training.seq_length=" in mistake.remedy


def test_keys_inside_a_list_carry_its_index() -> None:
    assert told(encoded({"kernel": "exponential"}, {"kernel": "gaussian", "widht": 2})) == [
        "model.encoding.kernels[1].widht = 2: is not a known key; did you mean 'width'?"
    ]
    assert told(encoded({"kernel": "exponential"}, {"kernel": "gauss"})) == [
        "model.encoding.kernels[1].kernel = 'gauss': is not a known choice; did you mean 'gaussian'?"
    ]
    (mistake,) = mistakes(encoded({"kernel": "exponential"}, {"kernel": "gaussian", "width": -1}))
    assert (mistake.key, mistake.rule) == ("model.encoding.kernels[1].width", "must be greater than 0")
    (mistake,) = mistakes(encoded({"kernel": "exponential", "slopes": [1, 1, 0, 1]}))
    assert mistake.key == "model.encoding.kernels[0].slopes[2]"
    assert "The slopes m_h of all heads" in mistake.remedy


def test_a_list_is_not_told_to_be_empty_because_its_only_item_is_wrong() -> None:
    assert len(mistakes(encoded({"kernel": "gaussian", "width": -1}))) == 1
    (mistake,) = mistakes(encoded())
    assert (mistake.key, mistake.value) == ("model.encoding.kernels", [])


def test_a_rule_of_a_section_brings_its_own_remedy() -> None:
    (mistake,) = mistakes(run_tree(evaluation={"lengths": [64, 32]}))
    assert (mistake.key, mistake.rule, mistake.remedy) == (
        "evaluation.lengths",
        "must ascend without repetition",
        "write [32, 64]",
    )


def test_keys_that_are_no_text_are_told() -> None:
    tree = run_tree()
    tree["model"][5] = 1
    assert [mistake.rule for mistake in mistakes(tree)] == ["keys must be strings"]


def test_a_misspelt_section_does_not_spill_its_contents() -> None:
    (mistake,) = mistakes(run_tree(evaluatoin={"lengths": [8, 16]}))
    assert mistake.value is None


def test_nothing_resembles_everything() -> None:
    assert did_you_mean("alibbi", ["mep", "alibi"]) == "did you mean 'alibi'?"
    assert did_you_mean("zzz", ["mep", "alibi"]) == "use one of mep, alibi"
