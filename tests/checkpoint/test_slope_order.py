"""A checkpoint keeps the order of its slopes: a model of another order takes it up, a run of another is not resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from megatron_mep.checkpoint.files import find
from megatron_mep.checkpoint.load import load_weights
from megatron_mep.checkpoint.resume import check_continues
from megatron_mep.config.errors import CheckpointError
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.run import RunConfig, run_of
from tests.checkpoint.job import FRESH, SAVED, Job, Run, World
from tests.support.distributed import run
from tests.support.runs import run_tree
from tests.support.tiny import VOCABULARY, model_config

BALANCED = torch.tensor([2.0**-8, 2.0**-2, 2.0**-6, 2.0**-4])
"""The slopes of four heads."""
ENCODINGS: dict[str, dict[str, Any]] = {
    "alibi": {"name": "alibi"},
    "mep": {"name": "mep"},
    "learned": {"name": "mep", "kernels": [{"kernel": "exponential", "learned": True}]},
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_stored_slopes_replace_those_of_another_order(tmp_path: Path, encoding: str):
    run(_save, 1, tmp_path, ENCODINGS[encoding])
    run(_load, 2, tmp_path, ENCODINGS[encoding])


def _save(root: Path, encoding: dict[str, Any]):
    world = World(1)
    Job(Run("one rank", 1, model={"encoding": {**encoding, "order": "balanced"}}), world, world.joined(), SAVED).save(
        root
    )


def _load(root: Path, encoding: dict[str, Any]):
    world = World(2, ParallelConfig(tensor=2))
    here = world.joined()
    expected = BALANCED.chunk(2)[here.tensor_rank]
    job = Job(Run("two tensor ranks", 1, model={"encoding": encoding}), world, here, FRESH)
    alone = build_model(model_config(encoding=encoding), world.parallel, VOCABULARY, FRESH)
    job.load(root)
    load_weights(find(root), alone)
    for model in (job.engine.module, alone):
        slopes = _slopes(model)
        assert len(slopes) >= 2
        for slope in slopes:
            torch.testing.assert_close(slope, expected, rtol=1e-5, atol=0)


def _slopes(model: nn.Module) -> list[Tensor]:
    """What the formulas take for slopes, of every layer and kernel; learned ones are stored before their softplus."""
    constants = [buffer for name, buffer in model.named_buffers() if "slope" in name]
    learned = [parameter.detach() for name, parameter in model.named_parameters() if "slope" in name]
    return constants + [nn.functional.softplus(raw) for raw in learned]


def _resolved(tree: Any) -> dict[str, Any]:
    return run_of(tree).model_dump(mode="json")


@pytest.mark.parametrize("name", ["alibi", "mep"])
def test_a_run_does_not_go_on_under_another_order(tmp_path: Path, name: str):
    file = tmp_path / "run.yaml"
    file.write_text(_run(name, "balanced").yaml(), encoding="utf-8")
    assert check_continues(file, yaml.safe_load(_run(name, "balanced").yaml()), _resolved) == []
    with pytest.raises(CheckpointError, match=r"model\.encoding\.order = 'published': was 'balanced'"):
        check_continues(file, yaml.safe_load(_run(name, "published").yaml()), _resolved)


def _run(name: str, order: str) -> RunConfig:
    return run_of(run_tree(model={"encoding": {"name": name, "order": order}}))
