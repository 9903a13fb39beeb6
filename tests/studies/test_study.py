"""A study goes through its arms, takes up where it was stopped, and names the arm that fails."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from megatron_mep import cli
from megatron_mep.config.errors import ConfigError
from megatron_mep.fingerprints import FILE
from megatron_mep.studies.arms import Arm, Study
from megatron_mep.studies.checks import StudyError
from megatron_mep.studies.costs import listing
from megatron_mep.studies.state import rows_of, state_of
from megatron_mep.study import arm_of, run_arm, run_study, summarize
from tests.data.toy import corpus, silent
from tests.end_to_end.job import describe_rank
from tests.studies.example import leave_rows, leave_trained, study_of
from tests.support import distributed


class Ranks:
    """In the place of a launcher: leaves what an arm's ranks would leave, and keeps in mind what was asked for."""

    def __init__(self, study: Study, ends: dict[tuple[str, str], int] | None = None) -> None:
        self.by_file = {str(arm.run_file): arm for arm in study.arms}
        self.by_folder = {str(arm.run.folder): arm for arm in study.arms}
        self.ends = ends or {}
        """Exit codes other than 0, by verb and arm."""
        self.asked: list[tuple[str, str]] = []

    def __call__(self, arguments: list[str]) -> int:
        verb, what, *rest = arguments
        arm = self.by_file[what] if verb == "train" else self.by_folder[what]
        self.asked.append((verb, arm.name))
        code = self.ends.get((verb, arm.name), 0)
        if code == 0 and verb == "train":
            assert yaml.safe_load(Path(what).read_text(encoding="utf-8"))["name"] == arm.name
            leave_trained(arm)
        elif code == 0:
            assert rest[-2:] == ["--to", str(arm.rows_file)]
            leave_rows(arm)
        return code


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """The folder of a prepared corpus."""
    folder: Path = tmp_path_factory.mktemp("text")
    corpus(folder)
    return folder


@pytest.fixture
def study(tmp_path, text) -> Study:
    return study_of(tmp_path, text=text)


def stages(study: Study) -> list[tuple[str, str]]:
    return [(verb, arm.name) for arm in study.arms for verb in ("train", "evaluate")]


def test_arms_are_trained_and_measured_in_turn_and_the_summary_is_written(study):
    ranks = Ranks(study)
    assert run_study(study, ranks, silent) == 0
    assert ranks.asked == stages(study)
    assert json.loads((study.folder / "summary.json").read_text())["missing"] == []
    assert {file.name for file in study.folder.glob("summary.*")} == {"summary.json", "summary.csv", "summary.md"}
    assert {state_of(arm) for arm in study.arms} == {"done"}


def test_a_study_that_is_done_asks_for_nothing(study):
    run_study(study, Ranks(study), silent)
    again = Ranks(study)
    assert run_study(study, again, silent) == 0
    assert again.asked == []


def test_a_stopped_study_goes_on_from_the_stage_it_was_in(study):
    ranks = Ranks(study, {("evaluate", "mep-seed1"): os.EX_TEMPFAIL})
    told: list[str] = []
    assert run_study(study, ranks, told.append) == os.EX_TEMPFAIL
    assert "stopped in arm mep-seed1" in told[-1]
    rest = Ranks(study)
    assert run_study(study, rest, silent) == 0
    assert rest.asked == stages(study)[3:]


def test_another_length_is_measured_without_training_again(study, tmp_path, text):
    run_study(study, Ranks(study), silent)
    longer = study_of(tmp_path, text=text, run={"evaluation": {"lengths": [16, 32, 64]}})
    ranks = Ranks(longer)
    run_study(longer, ranks, silent)
    assert ranks.asked == [("evaluate", arm.name) for arm in longer.arms]


def test_an_arm_that_fails_is_named_and_the_others_go_on(study):
    ranks = Ranks(study, {("train", "alibi-seed1"): 3})
    with pytest.raises(StudyError) as caught:
        run_study(study, ranks, silent)
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.rule) == ("arm alibi-seed1", "ended with exit code 3 in `mep train`")
    assert ranks.asked == [("train", "alibi-seed1"), *stages(study)[2:]]
    assert json.loads((study.folder / "summary.json").read_text())["missing"] == ["alibi-seed1"]


def test_an_arm_that_began_otherwise_ends_the_study_before_the_next(study):
    class Otherwise(Ranks):
        def __call__(self, arguments: list[str]) -> int:
            code = super().__call__(arguments)
            if self.asked[-1] == ("train", "mep-seed1"):
                leave_trained(study.arms[1], weights="other")
            return code

    ranks = Otherwise(study)
    with pytest.raises(StudyError, match="arm mep-seed1: weights"):
        run_study(study, ranks, silent)
    assert ranks.asked == stages(study)[:4]


def test_what_stands_against_an_arm_is_told_before_any_is_trained(tmp_path, text):
    study = study_of(tmp_path, text=text, ranks=3)
    ranks = Ranks(study)
    with pytest.raises(ConfigError, match="arm alibi-seed1 and 3 more: "):
        run_study(study, ranks, silent)
    assert ranks.asked == []


def test_one_arm_runs_alone(study):
    ranks = Ranks(study)
    assert run_arm(study, arm_of(study, 3), ranks, silent) == 0
    assert ranks.asked == stages(study)[6:]
    with pytest.raises(ConfigError, match="there are 4, from 0"):
        arm_of(study, 4)


def test_nothing_is_summarized_where_nothing_is(study):
    with pytest.raises(StudyError, match="holds no arm that is trained and measured"):
        summarize(study)


def test_the_listing_numbers_arms_and_tells_what_each_takes(study):
    leave_trained(study.arms[0])
    head, _, columns, *lines = listing(study, "h100").splitlines()
    assert "4 arms on 1 ranks each, compared with alibi" in head
    assert [line.split()[:3] for line in lines[:2]] == [["0", "alibi-seed1", "trained"], ["1", "mep-seed1", "to"]]
    assert columns.split()[-1] == "time"
    assert all("FLOPs" in line and line.endswith(" h") for line in lines)


def in_processes(folder: Path) -> Callable[[list[str]], int]:
    """In the place of a launcher: one rank, forked from here."""

    def start(arguments: list[str]) -> int:
        file = folder / "exit_code"
        distributed.run(_command, 1, arguments, file)
        return int(file.read_text(encoding="utf-8"))

    return start


def _command(arguments: list[str], file: Path) -> None:
    describe_rank()
    file.write_text(str(cli.main(arguments)), encoding="utf-8")


def test_trained_arms_begin_alike_and_score_the_same_tokens(tmp_path, text):
    encodings = {"alibi": {"name": "alibi"}, "learned": {"name": "mep", "kernels": [{"kernel": "log"}]}}
    study = study_of(tmp_path, text=text, encodings=encodings, seeds=[1])
    assert run_study(study, in_processes(tmp_path), silent) == 0
    first, second = study.arms
    assert (first.run.folder / FILE).read_text() == (second.run.folder / FILE).read_text()
    assert {row.scored_hash for arm in study.arms for row in rows_of(arm).values()} == {hash_of(first)}
    summary = json.loads((study.folder / "summary.json").read_text())
    assert [cell["against_baseline"]["num_documents"] > 1 for cell in summary["cells"] if cell["against_baseline"]]
    assert first.rows_file.read_text() != second.rows_file.read_text()


def test_another_seed_begins_otherwise(tmp_path, text):
    study = study_of(tmp_path, text=text, encodings={"nope": {"name": "nope"}}, run={"training": {"steps": 1}})
    for arm in study.arms:
        arm.run_file.parent.mkdir(parents=True, exist_ok=True)
        arm.run_file.write_text(arm.run.yaml(), encoding="utf-8")
        assert in_processes(tmp_path)(["train", str(arm.run_file)]) == 0
    one, other = (json.loads((arm.run.folder / FILE).read_text()) for arm in study.arms)
    assert one["weights"] != other["weights"]
    assert one["data_order"] != other["data_order"]


def hash_of(arm: Arm) -> str:
    return next(iter(rows_of(arm).values())).scored_hash


@pytest.mark.slow
def test_the_command_goes_through_the_launcher_and_one_stage_runs_as_a_rank(tmp_path, text, capfd):
    study_of(tmp_path, text=text, seeds=[1])
    file = str(tmp_path / "study.yaml")
    distributed.run(_command, 1, ["study", file, "--arm", "1", "--stage", "train"], tmp_path / "exit_code")
    assert cli.main(["study", file]) == 0
    capfd.readouterr()
    assert cli.main(["study", file, "--dry-run"]) == 0
    assert capfd.readouterr().out.count("done") == 2
    assert cli.main(["study", file, "--arm", "1", "--folder"]) == 0
    assert capfd.readouterr().out == f"{tmp_path / 'runs' / 'toy' / 'mep-seed1'}\n"
