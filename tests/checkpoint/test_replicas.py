"""Nothing is written where ranks that should hold the same do not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatron_mep.checkpoint.replicas import fingerprint, refuse_differing_replicas
from megatron_mep.checkpoint.zero_state import moment_of, restore_moment
from megatron_mep.config.errors import CheckpointError
from megatron_mep.model.copies import copies_of
from megatron_mep.parallel.config import ParallelConfig
from tests.checkpoint.job import FRESH, RUNS, WORLDS, Job, Run, World
from tests.support.distributed import run

NORM = "decoder.final_layernorm.weight"
MATRIX = "decoder.layers.0.mlp.linear_fc1.weight"


def _told(job: Job) -> list[tuple[str, str]]:
    with pytest.raises(CheckpointError) as caught:
        refuse_differing_replicas(job.engine, job.here)
    return [(mistake.key, mistake.rule.partition(":")[0]) for mistake in caught.value.mistakes]


def _disturb(tensor: Tensor, here: bool) -> None:
    """Flips the last bit of one number."""
    if here:
        tensor.detach().view(-1)[:1].view(torch.int32).bitwise_xor_(1)


def test_tensor_ranks_hold_alike_what_is_not_divided(tmp_path: Path):
    run(_on_tensor_ranks, 2, tmp_path)


def _on_tensor_ranks(root: Path) -> None:
    job = Job(RUNS["fp32, ZeRO 2"], WORLDS["two tensor ranks"], WORLDS["two tensor ranks"].joined(), FRESH)
    job.train(1, 2)
    refuse_differing_replicas(job.engine, job.here)
    weights = dict(job.engine.module.named_parameters())
    _disturb(weights[MATRIX], job.here.rank == 1)
    refuse_differing_replicas(job.engine, job.here)
    _disturb(weights[NORM], job.here.rank == 1)
    assert _told(job) == [(NORM, "is not the same on all tensor ranks")]
    with pytest.raises(CheckpointError, match="nothing was written"):
        job.save(root)
    assert not list(root.glob("step_*"))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_data_ranks_hold_the_same_weights(stage: int):
    run(_on_data_ranks, 2, stage)


def _on_data_ranks(stage: int) -> None:
    job = Job(Run("two data ranks", stage), WORLDS["two data ranks"], WORLDS["two data ranks"].joined(), FRESH)
    job.train(1, 2)
    refuse_differing_replicas(job.engine, job.here)
    weights = dict(job.engine.module.named_parameters())
    if stage == 3:
        # each rank has a part of its own, and there is nothing to compare
        return
    _disturb(weights[MATRIX], job.here.rank == 1)
    expected = [(MATRIX, "is not the same on all data and context ranks")]
    if stage == 0:
        expected.append((f"{MATRIX} (master)", "is not the same on all data and context ranks"))
    assert _told(job) == expected
    if stage == 0:
        _disturb(weights[MATRIX], job.here.rank == 1)
        refuse_differing_replicas(job.engine, job.here)
        _disturb(job.engine.optimizer.state[weights[NORM]]["exp_avg"], job.here.rank == 1)
        assert _told(job) == [(f"{NORM} (exp_avg)", "is not the same on all data and context ranks")]


@pytest.mark.parametrize(("num_chunks", "of_last"), [(1, 2), (2, 1)])
def test_stages_are_told_apart_and_hold_the_same_copies(num_chunks: int, of_last: int):
    run(_on_stages, 4, num_chunks, of_last)


def _on_stages(num_chunks: int, first_of_last: int) -> None:
    """`first_of_last` counts layers from 0: the first one of the last stage."""
    world = World(4, ParallelConfig(pipeline=2, virtual_pipeline=num_chunks))
    shared = Run("", 1, model={"encoding": {"name": "kerple_power", "shared_by_layers": True}, "num_layers": 4})
    job = Job(shared, world, world.joined(), FRESH)
    job.train(1, 2)
    refuse_differing_replicas(job.engine, job.here)
    last = job.here.pipeline_rank == 1
    first = dict(job.engine.module.chunks[0].named_parameters())[MATRIX]
    _disturb(first, last and job.here.data_rank == 1)
    of_last = MATRIX.replace("layers.0", f"layers.{first_of_last}")
    assert _told(job) == [(of_last, "is not the same on all data and context ranks")]
    _disturb(first, last and job.here.data_rank == 1)
    copy = next(copies_of(job.engine.module))
    moment = moment_of(copy.parameter, "exp_avg", job.engine).clone()
    _disturb(moment, last)
    restore_moment(copy.parameter, "exp_avg", moment, job.engine)
    assert _told(job) == [(f"{copy.name} (exp_avg)", "is not the same on all pipeline ranks")]


def test_a_fingerprint_tells_every_bit_shape_and_type():
    plain = torch.tensor([0.0, 1.0, float("nan")])
    others = (
        torch.tensor([-0.0, 1.0, float("nan")]),
        torch.tensor([1.0, 0.0, float("nan")]),
        plain[None],
        plain.view(torch.int32),
        plain.bfloat16(),
    )
    assert fingerprint(plain.clone()) == fingerprint(plain)
    assert fingerprint(torch.stack([plain, plain], 1)[:, 1]) == fingerprint(plain)
    assert len({fingerprint(plain), *map(fingerprint, others)}) == 6
