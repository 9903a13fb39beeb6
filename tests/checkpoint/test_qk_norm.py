"""Checkpoints of models that norm queries and keys."""

from pathlib import Path

import pytest
import torch

from megatron_mep.checkpoint.files import find
from megatron_mep.checkpoint.load import load_weights
from megatron_mep.config.errors import CheckpointError
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.checkpoint.job import FRESH, MORE, SAVED, STEPS, WORLDS, Job, Run
from tests.support.distributed import run
from tests.support.tiny import LAYOUT_RTOL, VOCABULARY, model_config
from tests.support.tolerance import assert_exact_equal

NORMED = Run("two tensor ranks", 1, model={"qk_norm": True, "num_query_groups": 2})


def test_what_two_tensor_ranks_save_one_rank_continues(tmp_path: Path):
    run(_save, 2, tmp_path)
    run(_load, 1, tmp_path)


def _save(root: Path):
    world = WORLDS[NORMED.world]
    here = world.joined()
    job = Job(NORMED, world, here, SAVED)
    job.train(1, STEPS)
    job.save(root)
    state, losses = job.state(), job.train(STEPS + 1, STEPS + MORE)
    if here.rank == 0:
        torch.save((state, losses), root / "expected.pt")


def _load(root: Path):
    world = WORLDS["one rank"]
    here = world.joined()
    state, losses = torch.load(root / "expected.pt")
    gains = [key for key in state if key.startswith("master") and ("q_layernorm" in key or "k_layernorm" in key)]
    assert len(gains) == 2 * 2
    assert not any(state[key].eq(1).all() for key in gains), "gains of the start show nothing"
    job = Job(NORMED, world, here, FRESH)
    job.load(root)
    found = job.state()
    assert found.keys() == state.keys()
    for key, value in found.items():
        assert_exact_equal(value, state[key], key)
    assert job.train(STEPS + 1, STEPS + MORE) == pytest.approx(losses, rel=LAYOUT_RTOL)
    without = build_model(model_config(num_query_groups=2), ParallelConfig(), VOCABULARY, FRESH)
    with pytest.raises(CheckpointError, match=r"self_attention\.k_layernorm\.weight is \[2, 8\] there and absent here"):
        load_weights(find(root), without)
