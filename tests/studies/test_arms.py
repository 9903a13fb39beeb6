"""Arms: every combination once, alike but for what the study varies; and mistakes that name theirs."""

import pytest

from megatron_mep.config.errors import ConfigError
from tests.studies.example import study_of


def test_every_combination_is_an_arm_with_all_encodings_of_a_seed_in_a_row(tmp_path):
    study = study_of(tmp_path, sizes={"wide": {"model": {"hidden_size": 64}}, "base": {}}, lengths=[16, 32])
    assert [arm.index for arm in study.arms] == list(range(16))
    assert [arm.name for arm in study.arms[:5]] == [
        "alibi-wide-length16-seed1",
        "mep-wide-length16-seed1",
        "alibi-wide-length16-seed2",
        "mep-wide-length16-seed2",
        "alibi-wide-length32-seed1",
    ]
    assert len({arm.run.folder for arm in study.arms}) == 16
    assert {(arm.size, arm.run.model.hidden_size) for arm in study.arms} == {("wide", 64), ("base", 32)}
    assert {arm.train_length for arm in study.arms} == {16, 32}


def test_arms_of_a_seed_differ_in_name_and_encoding_alone(tmp_path):
    first, second = study_of(tmp_path).arms[:2]
    one, other = (arm.run.model_dump(mode="json") for arm in (first, second))
    assert (one.pop("name"), other.pop("name")) == ("alibi-seed1", "mep-seed1")
    assert (one["model"].pop("encoding")["name"], other["model"].pop("encoding")["name"]) == ("alibi", "mep")
    assert one == other


def test_an_encoding_takes_no_option_from_the_base_run(tmp_path):
    study = study_of(tmp_path, run={"model": {"encoding": {"name": "mep", "mean": "geometric"}}})
    assert study.arms[1].run.model.encoding.mean == "arithmetic"


def test_overrides_are_those_of_the_study_file(tmp_path):
    study = study_of(tmp_path, "seeds=[7]", "run.training.steps=3")
    assert [(arm.run.seed, arm.run.training.steps) for arm in study.arms] == [(7, 3), (7, 3)]


def test_a_mistake_names_the_first_arm_that_has_it_and_how_many_more(tmp_path):
    encodings = {"alibi": {"name": "alibi"}, "wrong": {"name": "mep", "meen": "geometric"}}
    with pytest.raises(ConfigError) as caught:
        study_of(tmp_path, encodings=encodings)
    (mistake,) = caught.value.mistakes
    assert mistake.key == "arm wrong-seed1 and 1 more: model.encoding.meen"
    assert "did you mean 'mean'?" in mistake.remedy


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"baseline": "alibbi"}, "baseline", "did you mean 'alibi'?"),
        ({"run": {"seed": 3}}, "run.seed", "leave it out"),
        ({"sizes": {"small": {"name": "x"}}}, "sizes.small.name", "leave it out"),
        ({"sizes": {"small": {"evaluation": {"tokens": 32}}}}, "sizes.small.evaluation", "state it under run.eval"),
        ({"seedz": [1]}, "seedz", "did you mean 'seeds'?"),
        ({"seeds": [1, 1]}, "seeds", "write [1]"),
    ],
)
def test_what_is_wrong_with_the_study_itself_is_told(tmp_path, changes, key, told):
    with pytest.raises(ConfigError) as caught:
        study_of(tmp_path, **changes)
    (mistake,) = caught.value.mistakes
    assert mistake.key == key
    assert told in mistake.remedy
