"""Every layout goes on from what every other one saved: weights, masters, moments, schedule and data."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups
from tests.checkpoint.job import FRESH, SAVED, STEPS, Job, Run, World
from tests.support.distributed import run
from tests.support.tiny import LAYOUT_RTOL, LEARNED

AFTER = 5
WORLDS = {
    "one rank": (World(1), 1),
    "tensor 2 x data 2, ZeRO 1": (World(4, ParallelConfig(tensor=2, sequence=True)), 1),
    "pipeline 2": (World(2, ParallelConfig(pipeline=2)), 1),
    "tensor 4": (World(4, ParallelConfig(tensor=4)), 1),
    "data 2, ZeRO 3": (World(2), 3),
    "context 2, ZeRO 2": (World(2, ParallelConfig(context=2)), 2),
    "pipeline 2 x data 2": (World(4, ParallelConfig(pipeline=2)), 1),
    "pipeline 2, interleaved": (World(2, ParallelConfig(pipeline=2, virtual_pipeline=2)), 1),
}
MODELS: dict[str, dict[str, Any]] = {
    "learned": {"encoding": LEARNED, "num_layers": 4},
    # what two stages hold both of: the embeddings, and the weights of the encoding
    "shared": {
        "encoding": {"name": "kerple_power", "shared_by_layers": True},
        "tied_embeddings": True,
        "num_layers": 4,
    },
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint from every layout, each beside the losses that followed it."""
    root = tmp_path_factory.mktemp("saved")
    for name, (world, _) in WORLDS.items():
        run(_save, world.size, name, root)
    return root


def job_of(model: str, world_name: str, here: Groups, seed: int) -> Job:
    world, zero_stage = WORLDS[world_name]
    return Job(Run(world_name, zero_stage, model=MODELS[model]), world, here, seed)


def _save(world_name: str, root: Path) -> None:
    here = WORLDS[world_name][0].joined()
    for model in MODELS:
        job = job_of(model, world_name, here, SAVED)
        job.train(1, STEPS)
        job.save(root / world_name / model)
        losses = job.train(STEPS + 1, STEPS + AFTER)
        if here.rank == 0:
            (root / world_name / f"{model}.json").write_text(json.dumps(losses))


@pytest.mark.slow
@pytest.mark.parametrize("world_name", list(WORLDS))
def test_every_layout_goes_on_from_every_other(saved: Path, world_name: str) -> None:
    run(_load, WORLDS[world_name][0].size, world_name, saved, list(WORLDS))


def test_stages_and_one_rank_go_on_from_each_other(tmp_path: Path) -> None:
    names = ["one rank", "pipeline 2", "pipeline 2, interleaved"]
    for name in names:
        run(_save, WORLDS[name][0].size, name, tmp_path)
    for name in names:
        run(_load, WORLDS[name][0].size, name, tmp_path, names)


def _load(world_name: str, root: Path, others: list[str]) -> None:
    here = WORLDS[world_name][0].joined()
    for other in others:
        for model in MODELS:
            expected = json.loads((root / other / f"{model}.json").read_text())
            job = job_of(model, world_name, here, FRESH)
            job.load(root / other / model)
            losses = job.train(STEPS + 1, STEPS + AFTER)
            at_home = other == world_name
            assert losses == (expected if at_home else pytest.approx(expected, rel=LAYOUT_RTOL)), (other, model)
