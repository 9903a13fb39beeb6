"""The norms of queries and keys, trained."""

import json
from pathlib import Path

import pytest

from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.training.config import OptimizerConfig
from megatron_mep.training.parameter_groups import parameter_groups
from tests.support.distributed import joined, run
from tests.support.tiny import VOCABULARY, model_config
from tests.training.test_engine import Course, assert_alike, built, section, updated

LAYOUTS = {
    "tensor 2": ParallelConfig(tensor=2),
    "tensor 2, sequence": ParallelConfig(tensor=2, sequence=True),
    "tensor 4": ParallelConfig(tensor=4),
    "tensor 4, sequence": ParallelConfig(tensor=4, sequence=True),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Updates on one rank."""
    file = tmp_path_factory.mktemp("expected") / "course.json"
    run(_course, 1, ParallelConfig(), file)
    return json.loads(file.read_text())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensor_ranks_update_as_one_does(expected: Course, tmp_path: Path, layout: str):
    run(_course, LAYOUTS[layout].tensor, LAYOUTS[layout], tmp_path / "course.json")
    assert_alike(json.loads((tmp_path / "course.json").read_text()), expected, layout)


def _course(layout: ParallelConfig, file: Path):
    here = joined(tensor=layout.tensor, sequence=layout.sequence)
    model = built(layout, qk_norm=True, num_query_groups=2)
    gains = [weight for name, weight in model.named_parameters() if "q_layernorm" in name or "k_layernorm" in name]
    course = updated(model, section(zero_stage=1), here)
    assert len(gains) == 2 * 2
    assert not any(gain.eq(1).any() for gain in gains), "a gain has not learned"
    if here.rank == 0:
        file.write_text(json.dumps(course))


def test_gains_and_biases_decay_no_more_than_those_of_other_norms():
    run(_groups, 1)


def _groups():
    joined()
    model = build_model(model_config(qk_norm=True, norm="layernorm"), ParallelConfig(), VOCABULARY, 0)
    mine = {id(weight) for name, weight in model.named_parameters() if "q_layernorm" in name or "k_layernorm" in name}
    assert len(mine) == 2 * 4
    for group in parameter_groups(model.parameters(), OptimizerConfig(learning_rate=0.5, weight_decay=0.1)):
        held = mine & {id(weight) for weight in group["params"]}
        assert held == (mine if group["name"] == "vectors" else set())
        assert not held or group["wd_mult"] == 0
