"""The report of a whole job: its page draws what training made of the encoding, and tells by what it was trained."""

import json
import shutil
from pathlib import Path

import pytest

from megatron_mep.report import report
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import evaluate_on, job, train_on


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run of two tensor ranks that was evaluated by one."""
    folder = tmp_path_factory.mktemp("report")
    corpus(folder)
    done = job(folder, **{"parallel.tensor": 2, "model.encoding": "{name: kerple_log}", "validation.interval": 0})
    train_on(2, done)
    evaluate_on(1, done.folder, done.folder / "evaluation" / "lengths.jsonl", ("parallel.tensor=1",))
    return done


@pytest.fixture(scope="module")
def page(run: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(run.folder, tmp_path_factory.mktemp("page"))


def page_of(folder: Path, to: Path) -> str:
    report([folder], to, "mep report")
    return (to / "index.html").read_text(encoding="utf-8")


def test_the_page_draws_what_training_made_of_the_encoding(run: RunConfig, page: str) -> None:
    for layer in (1, 2):
        assert f"kerple_log of {run.name}, layer {layer} of 2, after step 8</figcaption>" in page
    assert "Drawn as before training" not in page


def test_the_page_tells_by_what_the_run_was_trained(run: RunConfig, page: str) -> None:
    told = json.loads((run.folder / "checkpoints" / "step_00000008" / "written_by.json").read_text(encoding="utf-8"))
    commit = told["commit"]["sha"] if told["commit"] else "unknown"
    assert f"{run.name} was trained by python {told['versions']['python']}, " in page
    assert f"torch {told['versions']['torch']}, commit {commit}" in page


def test_where_checkpoints_were_removed_the_page_says_what_it_draws(run: RunConfig, tmp_path: Path) -> None:
    copied = shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("step_*"))
    gone = copied / "checkpoints" / "step_00000008"
    told = f"Drawn as before training, which moves them: kerple_log of {run.name} ({gone} is not there)."
    assert told in page_of(copied, tmp_path / "out")
