"""Ranks that hold the same weights divide the writing of them."""

from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from megatron_mep.checkpoint.shares import parts_to_write, share_of
from megatron_mep.checkpoint.zero_state import MOMENTS
from tests.checkpoint.job import FRESH, WORLDS, Job, Run
from tests.support.distributed import run

BALANCE = 1.1
"""The most that a rank may write, by the mean."""


def test_everything_is_written_by_one_rank():
    run(_divided, 1)


def _divided() -> None:
    alibi = Run("one rank", 1, model={"encoding": {"name": "alibi"}})
    job = Job(alibi, WORLDS["one rank"], WORLDS["one rank"].joined(), FRESH)
    learned = dict(job.engine.module.named_parameters())
    assert learned.keys() < job.template.keys(), "otherwise constants are not looked at"
    expected = {("model", name) for name in job.template} | {(kind, name) for kind in MOMENTS for name in learned}
    sizes = [parameter.numel() for parameter in learned.values()]
    for num_ranks in (1, 2, 3, 7):
        shares = [share_of(job.template, rank, num_ranks) for rank in range(num_ranks)]
        assert sum(map(len, shares)) == len(expected)
        assert frozenset().union(*shares) == expected
        loads = [sum(job.template[name].data.numel() for _, name in share) for share in shares]
        assert max(loads) - min(loads) <= max(sizes)


@pytest.mark.parametrize("world_name", ["two data ranks", "two context ranks"])
@pytest.mark.parametrize("stage", [1, 3])
def test_ranks_write_as_much_each_and_keep_no_more(world_name: str, stage: int, tmp_path: Path):
    run(_balanced, 2, world_name, stage, tmp_path)


def _balanced(world_name: str, stage: int, root: Path) -> None:
    world = WORLDS[world_name]
    here = world.joined()
    job = Job(Run(world_name, stage), world, here, FRESH)
    job.train(1, 1)
    whole = 3 * 4 * sum(getattr(each, "ds_numel", each.numel()) for each in job.engine.module.parameters())

    written = [sum(file.stat().st_size for file in job.save(root).glob(f"__{rank}_*")) for rank in range(2)]
    assert sum(written) > whole
    assert max(written) < BALANCE * sum(written) / 2

    for copied in (False, True):
        mine = share_of(job.template, here.weights_group.rank(), 2)
        parts = parts_to_write(job.engine, job.template, mine, copied)
        held = sum(
            entry.data.untyped_storage().nbytes()
            for part in parts.values()
            for name, entry in part.items()
            if isinstance(job.template[name].data, nn.Parameter)
        )
        assert held < BALANCE * whole / 2
        everyone = torch.tensor(held)
        distributed.all_reduce(everyone)
        assert everyone >= whole


def test_what_tensor_ranks_hold_alike_is_written_by_the_first():
    run(_on_tensor_ranks, 2)


def _on_tensor_ranks() -> None:
    world = WORLDS["two tensor ranks"]
    here = world.joined()
    job = Job(Run("two tensor ranks", 1), world, here, FRESH)
    mine = {name for _, name in share_of(job.template, 0, 1)}
    matrix, norm = "decoder.layers.0.mlp.linear_fc1.weight", "decoder.final_layernorm.weight"
    assert (matrix in mine, norm in mine) == (True, here.rank == 0)
