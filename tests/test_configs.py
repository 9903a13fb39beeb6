"""Every shipped run file is a run, says what it is, and fits the ranks that its command starts."""

import re
from pathlib import Path

import pytest

from megatron_mep.check import describe
from megatron_mep.config.loader import load_tree
from megatron_mep.run import load_run

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
RUNS = [file for file in FILES if "name" in load_tree(file)]


def name_of(file: Path) -> str:
    return str(file.relative_to(CONFIGS))


def test_there_are_runs():
    assert len(RUNS) >= 5


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_it_opens_with_what_it_shows(file):
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert re.fullmatch(r"# [A-Z].*[.:]", first)


@pytest.mark.parametrize("file", RUNS, ids=name_of)
def test_it_is_a_run_and_can_be_described(file):
    run = load_run(file)
    told = describe(run)
    assert f"name: {run.name}" in told
    assert "parameters" in told
    assert run.name == file.stem


@pytest.mark.parametrize("file", RUNS, ids=name_of)
def test_it_says_its_command(file):
    assert f"train configs/{name_of(file)}" in file.read_text(encoding="utf-8")


def test_the_quickstart_runs_differ_in_name_and_encoding_alone():
    trees = [load_tree(CONFIGS / "quickstart" / f"{name}.yaml") for name in ("mep", "alibi", "rope")]
    for tree in trees:
        tree.pop("name")
        tree["model"].pop("encoding")
    assert trees[0] == trees[1] == trees[2]
