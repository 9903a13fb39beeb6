"""A run that is killed at random instants, saves included, ends where an undisturbed one ends."""

from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest

from megatron_mep.checkpoint.files import exists, find, verify
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import job, train_on, train_until_killed
from tests.end_to_end.test_resume import records

WORLD_SIZE = 2
SEED = 20


KINDS = [
    pytest.param({}, id="data ranks"),
    pytest.param({"parallel.pipeline": 2}, id="stages", marks=pytest.mark.slow),
    pytest.param(
        {
            "parallel.pipeline": 2,
            "parallel.virtual_pipeline": 2,
            "model.num_layers": 4,
            "checkpoint.asynchronous": "true",
        },
        id="interleaved stages, writing behind",
        marks=pytest.mark.slow,
    ),
    pytest.param({"parallel.tensor": 2, "training.zero_stage": 2}, id="tensor ranks", marks=pytest.mark.slow),
    pytest.param({"parallel.context": 2, "training.zero_stage": 3}, id="context ranks", marks=pytest.mark.slow),
    pytest.param({"checkpoint.asynchronous": "true"}, id="writing behind", marks=pytest.mark.slow),
]


def saving_often(folder: Path, name: str, kind: dict[str, Any]) -> RunConfig:
    """A run that spends most of its time on checkpoints."""
    changes = {"checkpoint.interval": 1, "checkpoint.keep": 2, "logging.tensorboard": "false"}
    return job(folder, name=name, **changes, **kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_at_random_instants_ends_as_the_undisturbed_one(
    tmp_path: Path, request: pytest.FixtureRequest, kind: dict[str, Any]
):
    draw = Random(SEED)
    corpus(tmp_path)
    whole = saving_often(tmp_path, "whole", kind)
    began_s = perf_counter()
    train_on(WORLD_SIZE, whole)
    undisturbed_s = perf_counter() - began_s
    left = request.config.getoption("--kills")
    saving = 0
    for number in count(1):
        run = saving_often(tmp_path, f"killed-{number}", kind)
        root = run.folder / "checkpoints"
        while left and train_until_killed(WORLD_SIZE, run, draw.randrange(WORLD_SIZE), draw.uniform(0, undisturbed_s)):
            left -= 1
            saving += any(root.glob(".attempt_*/*.partial"))
            if exists(root):
                verify(find(root))
        train_on(WORLD_SIZE, run)
        assert records(run) == records(whole)
        if not left:
            break
    print(f"{number} runs; {saving} of the kills came while a checkpoint was written")
