"""Checkpoints of models whose encoding carries states: the last layer has no weights of it."""

from pathlib import Path

import pytest
import torch

from tests.checkpoint.job import FRESH, MORE, SAVED, STEPS, WORLDS, Job, Run
from tests.support.distributed import run
from tests.support.tiny import LAYOUT_RTOL
from tests.support.tolerance import assert_exact_equal

LAYERS = 3
CARRIED = Run("two data ranks", 1, model={"encoding": {"name": "tape", "width": 6}, "num_layers": LAYERS})


def test_what_two_data_ranks_save_one_rank_continues(tmp_path: Path):
    run(_save, 2, tmp_path)
    run(_load, 1, tmp_path)


def _save(root: Path):
    world = WORLDS[CARRIED.world]
    job = Job(CARRIED, world, world.joined(), SAVED)
    job.train(1, STEPS)
    job.save(root)
    state, losses = job.state(), job.train(STEPS + 1, STEPS + MORE)
    if job.here.rank == 0:
        torch.save((state, losses), root / "expected.pt")


def _load(root: Path):
    world = WORLDS["one rank"]
    job = Job(CARRIED, world, world.joined(), FRESH)
    job.load(root)
    state, losses = torch.load(root / "expected.pt")
    found = job.state()
    masters = [key for key in found if key.startswith("master") and "encoding_weights" in key]
    assert len(masters) == 4 * (LAYERS - 1)
    assert all(found[key].abs().max() > 0 for key in masters), "weights of the start show nothing"
    for key, value in found.items():
        assert_exact_equal(value, state[key], key)
    assert job.train(STEPS + 1, STEPS + MORE) == pytest.approx(losses, rel=LAYOUT_RTOL)
