"""Checkpoints of models whose layers share the weights of their encoding: one of them holds these for all."""

from pathlib import Path

import pytest
import torch

from megatron_mep.parallel.config import ParallelConfig
from tests.checkpoint.job import FRESH, MORE, SAVED, STEPS, Job, Run, World
from tests.support.distributed import run
from tests.support.tiny import LAYOUT_RTOL
from tests.support.tolerance import assert_exact_equal

WORLD = World(4, ParallelConfig(tensor=2, sequence=True))
ENCODINGS = {
    "kerple_weighted": {"r1", "r2", "r3", "r4"},
    # most of its weights are not per head
    "fire": {"c", "multiplier", "inner", "inner_bias", "outer"},
}


def shared(encoding: str) -> Run:
    """Two of three layers share."""
    model = {"encoding": {"name": encoding, "shared_by_layers": True}, "num_layers": 3, "nope_layers": [1]}
    return Run("", 2, model=model)


def test_what_two_tensor_and_two_data_ranks_save_one_rank_continues(tmp_path: Path):
    run(_save, WORLD.size, tmp_path)
    run(_load, 1, tmp_path)


def _save(root: Path):
    here = WORLD.joined()
    for encoding in ENCODINGS:
        job = Job(shared(encoding), WORLD, here, SAVED)
        job.train(1, STEPS)
        job.save(root / encoding)
        state, losses = job.state(), job.train(STEPS + 1, STEPS + MORE)
        if here.rank == 0:
            torch.save((state, losses), root / encoding / "expected.pt")


def _load(root: Path):
    world = World(1)
    here = world.joined()
    for encoding, weights in ENCODINGS.items():
        job = Job(shared(encoding), world, here, FRESH)
        job.load(root / encoding)
        state, losses = torch.load(root / encoding / "expected.pt")
        found = job.state()
        masters = [key for key in found if key.startswith("master") and "encoding_weights" in key]
        assert {key.rsplit(".", 1)[-1] for key in masters} == weights
        assert len(masters) == len(weights), "the second layer holds them, the third borrows"
        for key, value in found.items():
            assert_exact_equal(value, state[key], f"{encoding}: {key}")
        assert job.train(STEPS + 1, STEPS + MORE) == pytest.approx(losses, rel=LAYOUT_RTOL)
