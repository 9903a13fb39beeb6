import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from torch import Tensor, distributed, nn

from megatron_mep.checkpoint.files import find, verify
from megatron_mep.checkpoint.load import load_initial_weights, load_weights
from megatron_mep.config.errors import CheckpointError
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.checkpoint.job import FRESH, MORE, RUNS, SAVED, STEPS, WORLDS, Job, Run, World
from tests.support.distributed import joined, run
from tests.support.tiny import LAYOUT_RTOL, LEARNED, VOCABULARY, model_config, whole
from tests.support.tolerance import assert_exact_equal


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of all runs, each beside what it must lead to."""
    root = tmp_path_factory.mktemp("saved")
    for name, world in WORLDS.items():
        run(_save, world.size, name, root)
    return root


def _save(world_name: str, root: Path):
    world = WORLDS[world_name]
    here = world.joined()
    for name, saved_run in RUNS.items():
        if saved_run.world == world_name:
            job = Job(saved_run, world, here, SAVED)
            job.train(1, STEPS)
            folder = job.save(root / name)
            state = job.state()
            losses = job.train(STEPS + 1, STEPS + MORE)
            if here.rank == 0:
                torch.save((state, losses), root / name / "expected.pt")
                assert folder == root / name / f"step_{STEPS:08d}"
                assert (folder / "run.yaml").read_text() == "name: tiny\n"
                verify(folder)


@pytest.mark.parametrize("world_name", list(WORLDS))
def test_training_goes_on_as_if_it_had_not_stopped(saved: Path, world_name: str):
    run(_load, WORLDS[world_name].size, world_name, saved)


def _load(world_name: str, root: Path):
    world = WORLDS[world_name]
    here = world.joined()
    own = next(candidate for candidate in RUNS.values() if candidate.world == world_name)
    for name, saved_run in RUNS.items():
        at_home = saved_run.world == world_name
        if not at_home and not saved_run.everywhere:
            continue
        expected_state, expected_losses = torch.load(root / name / "expected.pt")
        job = Job(saved_run if at_home else own, world, here, FRESH)
        job.load(root / name)
        state = job.state()
        assert state.keys() == expected_state.keys()
        for key, expected in expected_state.items():
            assert_exact_equal(state[key], expected, f"{name}: {key}")
        losses = job.train(STEPS + 1, STEPS + MORE)
        assert losses == (expected_losses if at_home else pytest.approx(expected_losses, rel=LAYOUT_RTOL)), name


def test_weights_need_not_divide_evenly_over_data_ranks(saved: Path):
    run(_uneven, 3, saved / "fp32, ZeRO 0")


def _uneven(root: Path):
    here = joined()
    expected, _ = torch.load(root / "expected.pt")
    for stage in (1, 3):
        job = Job(Run("three data ranks", stage), World(3), here, FRESH)
        job.load(root)
        for key, value in job.state().items():
            assert_exact_equal(value, expected[key], f"ZeRO {stage}: {key}")
        # what the next forward pass computes with
        with GatheredParameters(list(job.engine.module.parameters()), enabled=stage == 3):
            for name, parameter in job.engine.module.named_parameters():
                assert_exact_equal(parameter.detach(), expected[f"master of {name}"], f"ZeRO {stage}: {name}")


def test_constants_of_the_encoding_travel(tmp_path: Path):
    run(_save_constants, 1, tmp_path)
    run(_load_constants, 2, tmp_path)


ALIBI = Run("one rank", 1, model={"encoding": {"name": "alibi"}})


def _slopes(model: nn.Module) -> list[Tensor]:
    return [buffer for name, buffer in model.named_buffers() if "slope" in name]


def _save_constants(root: Path):
    job = Job(ALIBI, WORLDS["one rank"], joined(), SAVED)
    for layer, slope in enumerate(_slopes(job.engine.module)):
        # slopes that no encoding of this name would start from
        slope.copy_(torch.arange(4.0) + 10 * layer)
    job.save(root)


def _load_constants(root: Path):
    here = joined(tensor=2)
    world = World(2, ParallelConfig(tensor=2))
    job = Job(ALIBI, world, here, FRESH)
    job.load(root)
    alone = build_model(model_config(**ALIBI.model), world.parallel, VOCABULARY, FRESH)
    load_weights(find(root), alone)
    for model in (job.engine.module, alone):
        for layer, slope in enumerate(_slopes(model)):
            mine = torch.arange(4.0).chunk(2)[here.tensor_rank]
            assert_exact_equal(slope, mine + 10 * layer)


def test_initial_weights_are_masters_and_nothing_else_is_taken(saved: Path, tmp_path: Path):
    run(_initial, 2, saved / "fp32, ZeRO 0", tmp_path)


def _initial(root: Path, slopes: Path):
    world = WORLDS["two data ranks"]
    here = world.joined()
    expected, _ = torch.load(root / "expected.pt")
    for name in ("fp32, ZeRO 1", "fp32, ZeRO 3", "bf16, ZeRO 2"):
        job = Job(RUNS[name], world, here, FRESH)
        before = job.state()
        load_initial_weights(find(root), job.engine, job.template, here)
        for key, value in job.state().items():
            assert_exact_equal(value, (expected if key.startswith("master") else before)[key], f"{name}: {key}")

    job = Job(ALIBI, world, here, SAVED)
    for slope in _slopes(job.engine.module):
        # slopes that no encoding of this name would start from
        slope.fill_(7.0)
    job.save(slopes)
    other = Job(ALIBI, world, here, FRESH)
    load_initial_weights(find(slopes), other.engine, other.template, here)
    assert all(float(slope.max()) < 1 for slope in _slopes(other.engine.module))
    for key, value in other.state().items():
        assert_exact_equal(value, job.state()[key], key)


def test_weights_load_without_an_engine(saved: Path):
    run(_weights, 2, saved / "fp32, ZeRO 0", torch.float32)
    run(_weights, 2, saved / "bf16, ZeRO 1", torch.bfloat16)


def _weights(root: Path, dtype: torch.dtype):
    here = joined(tensor=2)
    expected, _ = torch.load(root / "expected.pt")
    model = build_model(model_config(encoding=LEARNED), ParallelConfig(tensor=2), VOCABULARY, FRESH, dtype).to(dtype)
    load_weights(find(root), model)
    for name, parameter in model.named_parameters():
        parts: list[Any] = [None] * 2
        distributed.all_gather_object(parts, parameter.detach().clone(), here.tensor_group)
        assert_exact_equal(whole(parts, parameter), expected[f"master of {name}"].to(parameter.dtype), name)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "more layers": ({"num_layers": 3}, "decoder.layers.input_layernorm.weight is [2, 32] there and [3, 32] here"),
    "wider": ({"hidden_size": 64}, "decoder.final_layernorm.weight is [32] there and [64] here, and 8 more weights"),
    "narrower": (
        {"ffn_hidden_size": 32},
        "decoder.layers.mlp.linear_fc1.weight is [2, 256, 32] there and [2, 64, 32] here",
    ),
    "biases": ({"linear_bias": True}, "decoder.layers.mlp.linear_fc1.bias is absent there and [2, 256] here"),
    "tied": ({"tied_embeddings": True}, "output_layer.weight is [384, 32] there and absent here"),
    "nope": (
        {"encoding": {"name": "nope"}},
        "encoding_weights.r1_0 is [2, 4] there and absent here, and 3 more weights",
    ),
}
"""Changes of the model, and what is told of the first weight that differs."""


def test_another_model_is_refused_and_left_as_it_is(saved: Path):
    run(_others, 1, saved / "fp32, ZeRO 0")


def _others(root: Path):
    here = joined()
    world = WORLDS["one rank"]
    for what, (changes, told) in OTHERS.items():
        model_changes = {"encoding": LEARNED, **changes}
        job = Job(Run("one rank", 1, model=model_changes), world, here, FRESH)
        before = job.state()
        with pytest.raises(CheckpointError, match=f"holds another model: .*{re.escape(told)}"):
            job.load(root)
        for key, value in job.state().items():
            assert_exact_equal(value, before[key], f"{what}: {key}")

        model = build_model(model_config(**model_changes), world.parallel, VOCABULARY, FRESH)
        weights = {name: value.clone() for name, value in model.state_dict().items() if value is not None}
        with pytest.raises(CheckpointError, match="holds another model"):
            load_weights(find(root), model)
        for name, value in weights.items():
            assert_exact_equal(model.state_dict()[name], value, f"{what}: {name}")


def test_damage_is_told_on_every_rank_before_anything_is_read(saved: Path, tmp_path: Path):
    shutil.copytree(saved / "fp32, ZeRO 1", tmp_path / "copy")
    run(_damaged, 2, tmp_path / "copy")


def _damaged(root: Path):
    here = joined()
    job = Job(RUNS["fp32, ZeRO 1"], WORLDS["two data ranks"], here, FRESH)
    before = job.state()
    files = sorted(find(root).glob("*.distcp"))
    assert len(files) > 1
    distributed.barrier()
    if here.rank == 0:
        for file in files:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    distributed.barrier()
    with pytest.raises(CheckpointError) as caught:
        job.load(root)
    assert {mistake.key for mistake in caught.value.mistakes} == {str(file) for file in files}
    for key, value in job.state().items():
        assert_exact_equal(value, before[key], key)
