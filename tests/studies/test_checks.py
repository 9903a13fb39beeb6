"""What arms left is looked up, and the arm that is not like the others is named."""

import pytest

from megatron_mep.studies.checks import StudyError, check_beginnings, check_scored
from megatron_mep.studies.state import rows_of
from tests.studies.example import leave_rows, leave_trained, study_of


def keys(error: pytest.ExceptionInfo[StudyError]) -> list[str]:
    return [mistake.key for mistake in error.value.mistakes]


def test_arms_that_began_alike_pass_and_those_to_come_are_left_out(tmp_path):
    study = study_of(tmp_path)
    for arm in study.arms[:3]:
        leave_trained(arm)
    check_beginnings(study.arms)


@pytest.mark.parametrize("what", ["weights", "data_order"])
def test_another_beginning_is_told_with_the_arms_name(tmp_path, what):
    study = study_of(tmp_path)
    for arm in study.arms:
        leave_trained(arm, **({what: "other"} if arm.name == "mep-seed2" else {}))
    with pytest.raises(StudyError) as caught:
        check_beginnings(study.arms)
    assert keys(caught) == [f"arm mep-seed2: {what}"]
    assert "as in arm alibi-seed2" in caught.value.mistakes[0].rule


def test_an_arm_that_does_not_tell_what_it_began_with_is_not_taken_on_trust(tmp_path):
    study = study_of(tmp_path)
    leave_trained(study.arms[0])
    (study.arms[0].run.folder / "fingerprints.json").unlink()
    with pytest.raises(StudyError, match="is not there"):
        check_beginnings(study.arms)


def test_an_arm_that_began_under_other_settings_is_told_with_the_key(tmp_path):
    leave_trained(study_of(tmp_path, run={"training": {"steps": 3}}).arms[1])
    with pytest.raises(StudyError) as caught:
        check_beginnings(study_of(tmp_path).arms)
    assert keys(caught) == ["arm mep-seed1: training.steps"]


def test_other_scored_tokens_are_told_with_the_arms_name(tmp_path):
    study = study_of(tmp_path)
    for arm in study.arms:
        leave_rows(arm, scored_hash=("t" if arm.name == "alibi-seed2" else "s") * 64)
    rows = {arm.name: rows_of(arm) for arm in study.arms}
    with pytest.raises(StudyError) as caught:
        check_scored(rows)
    assert keys(caught)[0] == "arm alibi-seed2: scored tokens of blocks at 16"
    del rows["alibi-seed2"]
    check_scored(rows)


def test_half_a_row_that_a_kill_left_is_none_and_of_two_the_newer_counts(tmp_path):
    arm = study_of(tmp_path).arms[0]
    leave_rows(arm, nll=2.0)
    newer = leave_rows(arm, nll=1.0)
    with arm.rows_file.open("a", encoding="utf-8") as file:
        file.write(newer[0].model_dump_json()[:50])
    assert list(rows_of(arm).values()) == newer
