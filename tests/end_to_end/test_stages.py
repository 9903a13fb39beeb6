"""A whole job whose layers are shared by two pipeline stages."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.multiprocessing.spawn import ProcessException

from megatron_mep.evaluation.rows import read_rows
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import evaluate_on, job, train_on
from tests.end_to_end.test_resume import STEP, records

STAGES = {"parallel.pipeline": 2, "model.num_layers": 4}
INTERLEAVED = STAGES | {"parallel.virtual_pipeline": 2, "checkpoint.asynchronous": "true"}
OPTIONS = {"model.encoding": "{name: kerple_power}", "model.hidden_dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stages")
    corpus(place)
    return place


@pytest.fixture(scope="module")
def alone(folder: Path) -> RunConfig:
    """A run of one rank, which is done."""
    run = job(folder, name="alone", **OPTIONS, **STAGES | {"parallel.pipeline": 1})
    train_on(1, run)
    return run


@pytest.mark.parametrize("layout", [STAGES, INTERLEAVED], ids=["plain", "interleaved"])
def test_two_stages_measure_what_one_rank_does(folder: Path, alone: RunConfig, layout: dict[str, Any]) -> None:
    staged = job(folder, name=f"staged-{len(layout)}", **OPTIONS, **layout)
    train_on(2, staged)
    for there, here in zip(records(alone), records(staged), strict=True):
        assert here == pytest.approx(there, rel=1e-5)
    assert _events(staged) == _events(alone), "the weights of all layers"
    (validated,), (expected,) = (read_rows(run.folder / "validation.jsonl") for run in (staged, alone))
    assert (validated.scored_hash, validated.pipeline_parallel) == (expected.scored_hash, 2)
    assert validated.nll == pytest.approx(expected.nll, rel=1e-5)
    assert validated.attention_backend == expected.attention_backend
    whole = ("parallel.virtual_pipeline=1", "parallel.pipeline=1")
    rows = [evaluate_on(1, run.folder, folder / f"{run.name}-{staged.name}.jsonl", whole) for run in (alone, staged)]
    rows.append(evaluate_on(2, staged.folder, folder / f"{staged.name}.jsonl"))
    for expected_row, *found in zip(*rows, strict=True):
        for row in found:
            assert row.nll == pytest.approx(expected_row.nll, rel=1e-5)


@pytest.mark.parametrize("layout", [STAGES, INTERLEAVED], ids=["plain", "interleaved"])
def test_two_stages_that_are_killed_end_as_undisturbed_ones(folder: Path, layout: dict[str, Any]) -> None:
    names = (f"undisturbed-{len(layout)}", f"killed-{len(layout)}")
    undisturbed, killed = (job(folder, name=name, **layout) for name in names)
    train_on(2, undisturbed)
    with pytest.raises(ProcessException):
        train_on(2, killed, killed_at=(STEP, 5))
    train_on(2, killed)
    assert records(killed) == records(undisturbed)


def _events(run: RunConfig) -> set[str]:
    events = EventAccumulator(str(run.folder / "tensorboard" / "steps")).Reload()
    return {name for name in events.Tags()["scalars"] if name.startswith("encoding/")}
