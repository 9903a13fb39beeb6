"""Numbers that are not finite are not written, and push out no checkpoint that is good."""

from pathlib import Path

import pytest
from torch import Tensor

from megatron_mep.checkpoint.files import find, verify
from megatron_mep.checkpoint.finite import refuse_non_finite
from megatron_mep.checkpoint.state import weights
from megatron_mep.checkpoint.zero_state import master_of, moment_of, restore_moment, restore_weight
from megatron_mep.config.errors import TrainingError
from tests.checkpoint.job import FRESH, RUNS, WORLDS, Job
from tests.support.distributed import run

MATRIX = "decoder.layers.0.mlp.linear_fc1.weight"


def test_weights_that_are_not_finite_on_one_rank_are_refused_by_all(tmp_path: Path):
    run(_weights, 2, tmp_path)


def _spoiled(tensor: Tensor, value: float, here: bool) -> Tensor:
    spoiled = tensor.clone()
    if here:
        spoiled.view(-1)[-1] = value
    return spoiled


def _weights(root: Path) -> None:
    job = Job(RUNS["fp32, ZeRO 2"], WORLDS["two tensor ranks"], WORLDS["two tensor ranks"].joined(), FRESH)
    job.train(1, 2)
    good = job.save(root, keep=1)
    weight = dict(job.engine.module.named_parameters())[MATRIX]
    master = master_of(weight).clone()
    restore_weight(weight, _spoiled(master, float("inf"), job.here.rank == 1), job.engine)
    with pytest.raises(
        TrainingError, match=f"linear_fc1.* numbers that are not finite; .* checkpoint, {good}, is kept"
    ):
        job.save(root, keep=1)
    restore_weight(weight, master, job.engine)
    moment = moment_of(weight, "exp_avg_sq", job.engine).clone()
    restore_moment(weight, "exp_avg_sq", _spoiled(moment, float("nan"), job.here.rank == 1), job.engine)
    with pytest.raises(TrainingError, match=r"optimizer\.exp_avg_sq\.decoder\.layers.*linear_fc1"):
        job.save(root, keep=1)
    assert find(root) == good
    verify(good)


def test_constants_may_be_infinite(tmp_path: Path):
    run(_constants, 1, tmp_path)


def _constants(root: Path) -> None:
    job = Job(RUNS["bf16, ZeRO 3"], WORLDS["one rank"], WORLDS["one rank"].joined(), FRESH)
    buffers = dict(job.engine.module.named_buffers())
    slopes = [name for name in job.template if name in buffers]
    assert slopes
    for name in slopes:
        job.template[name].data.fill_(float("-inf"))
    refuse_non_finite(job.template, [weights(job.template, master_of)], root)
