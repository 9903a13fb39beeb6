"""A whole job whose layers are shared by two pipeline stages."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.multiprocessing.spawn import ProcessException

from megatron_mep.evaluation.rows import read_rows
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import evaluate_on, job, train_on
from tests.end_to_end.test_resume import STEP, records

STAGES = {"parallel.pipeline": 2}
LEARNED = {"model.encoding": "{name: kerple_power}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stages")
    corpus(place)
    return place


def test_two_stages_measure_what_one_rank_does(folder: Path) -> None:
    options = {"model.hidden_dropout": 0.0, **LEARNED}
    alone, staged = job(folder, name="alone", **options), job(folder, name="staged", **options, **STAGES)
    train_on(1, alone)
    train_on(2, staged)
    for there, here in zip(records(alone), records(staged), strict=True):
        assert here == pytest.approx(there, rel=1e-5)
    assert _events(staged) == _events(alone), "the weights of all layers"
    (validated,), (expected,) = (read_rows(run.folder / "validation.jsonl") for run in (staged, alone))
    assert (validated.scored_hash, validated.pipeline_parallel) == (expected.scored_hash, 2)
    assert validated.nll == pytest.approx(expected.nll, rel=1e-5)
    assert validated.attention_backend == expected.attention_backend
    rows = [evaluate_on(1, run.folder, run.folder / "rows.jsonl", ("parallel.pipeline=1",)) for run in (alone, staged)]
    for there, here in zip(*rows, strict=True):
        assert here.nll == pytest.approx(there.nll, rel=1e-5)


def test_two_stages_that_are_killed_end_as_undisturbed_ones(folder: Path) -> None:
    undisturbed, killed = job(folder, name="undisturbed", **STAGES), job(folder, name="killed", **STAGES)
    train_on(2, undisturbed)
    with pytest.raises(ProcessException):
        train_on(2, killed, killed_at=(STEP, 5))
    train_on(2, killed)
    assert records(killed) == records(undisturbed)


def _events(run: RunConfig) -> set[str]:
    events = EventAccumulator(str(run.folder / "tensorboard" / "steps")).Reload()
    return {name for name in events.Tags()["scalars"] if name.startswith("encoding/")}
