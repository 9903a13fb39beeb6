"""Checkpoints of pipeline stages that hold unlike parts of a model, read by another number of stages."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_mep.checkpoint.files import find
from megatron_mep.checkpoint.load import load_initial_weights, load_weights
from megatron_mep.model.gpt import build_model
from megatron_mep.model.score import scorer
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups
from tests.checkpoint.job import FRESH, MORE, SAVED, STEPS, Job, Run, World
from tests.support.distributed import run
from tests.support.tiny import LAYOUT_RTOL, LEARNED, VOCABULARY, model_config, samples

ONE, STAGES = World(1), World(4, ParallelConfig(pipeline=2))
"""Two stages, each on two data ranks."""
MODELS: dict[str, dict[str, Any]] = {
    # the first stage learns nothing of the encoding
    "bare stage": {"encoding": LEARNED, "nope_layers": [1]},
    # the last stage learns nothing of it
    "embedded": {"encoding": {"name": "learned_absolute", "num_positions": 16}, "tied_embeddings": True},
    "carried": {"encoding": {"name": "tape"}},
}
DROPPING = "dropping"


def job_of(model: str, world: World, here: Groups, seed: int) -> Job:
    options = {"encoding": LEARNED, "hidden_dropout": 0.2} if model == DROPPING else MODELS[model]
    return Job(Run("", 1, model=options), world, here, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("writer", "reader"), [(STAGES, ONE), (ONE, STAGES)], ids=["one reads two", "two read one"])
def test_another_number_of_stages_reads_all_of_it(tmp_path: Path, writer: World, reader: World):
    run(_save, writer.size, tmp_path, writer, tuple(MODELS))
    run(_read, reader.size, tmp_path, reader)


def _save(root: Path, world: World, models: tuple[str, ...]) -> None:
    here = world.joined()
    for name in models:
        job = job_of(name, world, here, SAVED)
        job.train(1, STEPS)
        job.save(root / name)
        nll = scorer(job.engine.module, here)(samples(1, 3))
        losses = job.train(STEPS + 1, STEPS + MORE)
        if here.rank == 0:
            torch.save((losses, nll), root / name / "expected.pt")


def _read(root: Path, world: World) -> None:
    here = world.joined()
    for name, options in MODELS.items():
        losses, nll = torch.load(root / name / "expected.pt")
        job = job_of(name, world, here, FRESH)
        job.load(root / name)
        assert job.train(STEPS + 1, STEPS + MORE) == pytest.approx(losses, rel=LAYOUT_RTOL), name
        begun = job_of(name, world, here, FRESH)
        load_initial_weights(find(root / name), begun.engine, begun.template, here)
        evaluated = build_model(model_config(**options), world.parallel, VOCABULARY, FRESH)
        load_weights(find(root / name), evaluated)
        for model in (begun.engine.module, evaluated):
            torch.testing.assert_close(scorer(model, here)(samples(1, 3)), nll, rtol=LAYOUT_RTOL, atol=0)


def test_every_stage_goes_on_drawing_where_it_stopped(tmp_path: Path):
    run(_save, STAGES.size, tmp_path, STAGES, (DROPPING,))
    run(_drop_on, STAGES.size, tmp_path)


def _drop_on(root: Path) -> None:
    here = STAGES.joined()
    losses, _ = torch.load(root / DROPPING / "expected.pt")
    job = job_of(DROPPING, STAGES, here, FRESH)
    job.load(root / DROPPING)
    assert job.train(STEPS + 1, STEPS + MORE) == losses
