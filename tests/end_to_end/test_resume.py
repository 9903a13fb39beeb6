"""A run that is killed and started again ends where an undisturbed one ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch.multiprocessing.spawn import ProcessException

from megatron_mep.checkpoint.files import LATEST, find, steps_in
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import job, keys_refused, train_on

STEP = "megatron_mep.training.loop.train_step"
WRITE = "megatron_mep.checkpoint.save.sharded_generators"
PUBLISH = "megatron_mep.checkpoint.draft.publish"
NAME = "megatron_mep.checkpoint.files.write_atomically"


def records(run: RunConfig) -> list[dict[str, Any]]:
    """What metrics.jsonl says of each step, but for the speed."""
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    return [{key: value for key, value in record.items() if "_per_" not in key or "bits" in key} for record in told]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("resume")
    corpus(place)
    return place


@pytest.fixture(scope="module")
def undisturbed(folder) -> dict[int, RunConfig]:
    """Finished runs, by tensor size."""
    runs = {size: job(folder, **{"name": f"whole{size}", "parallel.tensor": size}) for size in (1, 2)}
    for size, run in runs.items():
        train_on(size, run)
    return runs


@pytest.mark.parametrize(
    ("world_size", "point", "call"),
    [
        pytest.param(1, STEP, 5, id="in a step"),
        pytest.param(1, STEP, 2, id="before the first checkpoint"),
        pytest.param(1, WRITE, 2, id="while the second checkpoint is written"),
        pytest.param(1, PUBLISH, 2, id="when it is put in place"),
        pytest.param(1, NAME, 2, id="when it becomes the latest"),
        pytest.param(2, STEP, 5, id="one of two ranks in a step"),
    ],
)
def test_a_killed_run_ends_as_the_undisturbed_one(folder, undisturbed, world_size, point, call):
    name = f"killed-{world_size}-{point.rpartition('.')[2]}-{call}"
    run = job(folder, **{"name": name, "parallel.tensor": world_size})
    with pytest.raises(ProcessException):
        train_on(world_size, run, killed_at=(point, call))
    assert max(steps_in(run.folder / "checkpoints"), default=0) < 8
    train_on(world_size, run)
    assert records(run) == records(undisturbed[world_size])


def test_a_run_goes_on_at_another_layout(folder, undisturbed):
    run = job(folder, name="moved", **{"model.hidden_dropout": 0.0})
    whole = job(folder, name="stayed", **{"model.hidden_dropout": 0.0})
    train_on(1, whole)
    with pytest.raises(ProcessException):
        train_on(1, run, killed_at=(STEP, 5))
    train_on(2, job(folder, name="moved", **{"model.hidden_dropout": 0.0, "training.zero_stage": 2}))
    for moved, stayed in zip(records(run), records(whole), strict=True):
        assert moved["loss"] == pytest.approx(stayed["loss"], rel=1e-5)


def test_another_run_under_the_same_name_is_refused_and_nothing_is_lost(folder, undisturbed, tmp_path):
    run = job(folder, **{"name": undisturbed[1].name, "model.num_layers": 1, "training.optimizer.learning_rate": 1.0})
    before = find(run.folder), (run.folder / "metrics.jsonl").read_text()
    keys = keys_refused(run, tmp_path / "keys.json")
    assert sorted(keys) == ["model.num_layers", "training.optimizer.learning_rate"]
    assert (find(run.folder), (run.folder / "metrics.jsonl").read_text()) == before


def test_a_damaged_checkpoint_is_refused_with_the_file_and_nothing_is_overwritten(folder, tmp_path):
    run = job(folder, name="damaged", **{"training.steps": 3})
    train_on(1, run)
    weights = next(find(run.folder).glob("*.distcp"))
    weights.write_bytes(weights.read_bytes()[:-100])
    longer = job(folder, name="damaged", **{"training.steps": 6})
    assert keys_refused(longer, tmp_path / "keys.json") == [str(weights)]
    assert steps_in(run.folder / "checkpoints") == [3]
    assert (run.folder / "checkpoints" / LATEST).read_text() == "step_00000003\n"
