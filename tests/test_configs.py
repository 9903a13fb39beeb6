"""Every shipped run file is a run, says what it is, and fits the ranks that its command starts."""

import re
from pathlib import Path

import pytest
import torch

from megatron_mep.check import describe
from megatron_mep.config.loader import load_tree
from megatron_mep.model.count import num_parameters
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.plan.plan import plan_of
from megatron_mep.run import load_run
from tests.support import distributed

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
PRETRAINED = sorted((CONFIGS / "pretrain").glob("*.yaml"))
LAYOUT = re.compile(r"^#   (\d+) GPUs +(\w+)  (.+)$", re.MULTILINE)
"""Number of GPUs, their kind, and the overrides with which the run is started on them."""
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


@pytest.mark.parametrize("file", PRETRAINED, ids=name_of)
def test_its_layouts_are_valid_and_fit(file):
    layouts = LAYOUT.findall(file.read_text(encoding="utf-8"))
    assert [num_gpus for num_gpus, _, _ in layouts] == ["8", "64", "256"]
    for num_gpus, device, overrides in layouts:
        run = load_run(file, [] if overrides == "as it stands" else overrides.split())
        assert re.search(rf"^world size +{num_gpus} = ", describe(run, int(num_gpus)), re.MULTILINE)
        assert plan_of(run, int(num_gpus), device).fits


def test_pretrained_models_are_counted_as_they_are_built():
    distributed.run(_builds, 1)


def _builds():
    distributed.joined()
    for file in PRETRAINED:
        model = load_run(file).model
        # without memory
        with torch.device("meta"):
            weights = list(build_model(model, ParallelConfig(), 32000, seed=0).parameters())
        assert all(weight.is_meta for weight in weights), file
        assert sum(weight.numel() for weight in weights) == num_parameters(model, 32000), file


def test_the_quickstart_runs_differ_in_name_and_encoding_alone():
    trees = [load_tree(CONFIGS / "quickstart" / f"{name}.yaml") for name in ("mep", "alibi", "rope")]
    for tree in trees:
        tree.pop("name")
        tree["model"].pop("encoding")
    assert trees[0] == trees[1] == trees[2]
