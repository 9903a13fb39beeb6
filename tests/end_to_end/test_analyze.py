"""`mep analyze` on a checkpoint of a tiny run: rows, layouts that agree, what is refused; and losses by position."""

import os
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_mep import cli
from megatron_mep.analysis.rows import AnalysisRow
from megatron_mep.evaluation.rows import read_rows, rows_of_kind
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import describe_rank, evaluate_on, job, train_on
from tests.support.distributed import run as run_ranks

LENGTHS = (16, 64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("analyze")
    corpus(folder)
    run = job(folder)
    train_on(1, run)
    return run


def analyzed(run: RunConfig, to: Path, *overrides: str, world_size: int = 1) -> tuple[list[AnalysisRow], str]:
    """The rows, and what the first rank was told."""
    lengths = ",".join(map(str, LENGTHS))
    command = ["analyze", str(run.folder), "--lengths", lengths, "--to", str(to / "rows.jsonl"), *overrides]
    run_ranks(_analyze, world_size, to, command)
    told = (to / "0.txt").read_text(encoding="utf-8")
    return (rows_of_kind(to / "rows.jsonl", AnalysisRow) if (to / "rows.jsonl").exists() else []), told


def _analyze(to: Path, command: Sequence[str]) -> None:
    describe_rank()
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        code = cli.main(command)
    text = f"exit code {code}\n{output.getvalue()}{errors.getvalue()}"
    (to / f"{os.environ['RANK']}.txt").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def alone(trained: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[AnalysisRow], str]:
    return analyzed(trained, tmp_path_factory.mktemp("alone"), "analysis.windows=5", "analysis.batch_tokens=128")


def test_there_is_a_row_for_every_length(trained: RunConfig, alone: tuple[list[AnalysisRow], str]):
    rows, told = alone
    assert told.startswith("exit code 0\n")
    assert "length     64  receptive field " in told
    assert tuple(row.length for row in rows) == LENGTHS
    for row in rows:
        assert (row.run, row.step, row.train_length, row.encoding) == (trained.name, 8, 16, "mep")
        assert row.attention_mass is not None
        assert [len(layer) for layer in row.attention_mass] == [4, 4]
        assert row.gradient_share is not None
        assert list(row.gradient_share) == sorted(row.gradient_share)
        assert row.gradient_share[-1] == pytest.approx(1)
        assert row.receptive_field is not None
        assert 0 < row.receptive_field < row.length
    assert len({row.scored_hash for row in rows}) == 1


@pytest.mark.parametrize("layout", [[], ["parallel.tensor=2"]], ids=["data", "tensor"])
def test_two_ranks_see_what_one_does(
    trained: RunConfig, alone: tuple[list[AnalysisRow], str], tmp_path: Path, layout: list[str]
):
    options = ("analysis.windows=5", "analysis.batch_tokens=128", *layout)
    rows, _ = analyzed(trained, tmp_path, *options, world_size=2)
    for ours, expected in zip(rows, alone[0], strict=True):
        assert (ours.scored_hash, ours.distance_ends) == (expected.scored_hash, expected.distance_ends)
        assert ours.gradient_share == pytest.approx(expected.gradient_share, rel=1e-4)
        for our_layer, expected_layer in zip(ours.attention_mass, expected.attention_mass, strict=True):
            for our_head, expected_head in zip(our_layer, expected_layer, strict=True):
                assert our_head == pytest.approx(expected_head, rel=1e-4, abs=1e-7)


def test_lengths_that_are_done_are_left_out(trained: RunConfig, alone: tuple[list[AnalysisRow], str], tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(alone[0][0].model_dump_json() + "\n", encoding="utf-8")
    options = ("analysis.windows=5", "analysis.batch_tokens=128")
    rows, told = analyzed(trained, tmp_path, *options, world_size=2)
    assert [row.length for row in rows] == list(LENGTHS)
    assert told.count("is in") == 1
    again, _ = analyzed(trained, tmp_path, *options, "--again")
    assert [row.length for row in again] == [*LENGTHS, *LENGTHS]
    others, _ = analyzed(trained, tmp_path, *options, "analysis.share=0.5")
    assert len(others) == 6


@pytest.mark.parametrize(
    ("override", "world_size", "told"),
    [
        ("parallel.context=2", 2, "parallel.context = 2: cannot be used here: attention is looked at in whole"),
        ("parallel.pipeline=2", 2, "parallel.pipeline = 2: cannot be used here: attention is looked at in whole"),
        ("analysis.windows=1000000", 1, "analysis.lengths = [16, 64]: must leave room in the held-out text of"),
        ("analysis.windows=0", 1, "analysis.windows = 0: "),
    ],
)
def test_what_cannot_be_done_is_refused(trained: RunConfig, tmp_path: Path, override: str, world_size: int, told: str):
    rows, heard = analyzed(trained, tmp_path, override, world_size=world_size)
    assert rows == []
    assert heard.startswith("exit code 2\n")
    assert f"mep: {told}" in heard
    assert "Traceback" not in heard


def test_validation_tells_the_losses_by_position_that_evaluation_finds(trained: RunConfig, tmp_path: Path):
    (row,) = read_rows(trained.folder / "validation.jsonl")
    assert row.position_ends == (1, 2, 4, 8, 16)
    options = ("evaluation.protocols=[per-position]", "evaluation.lengths=[16]", "evaluation.tokens=512")
    (every,) = evaluate_on(1, trained.folder, tmp_path / "rows.jsonl", options)
    losses = every.position_nll
    expected = [sum(losses[first:last]) / (last - first) for first, last in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16))]
    assert row.position_nll == pytest.approx(expected, rel=1e-6)
    events = EventAccumulator(str(trained.folder / "tensorboard" / "steps")).Reload()
    (event,) = events.Scalars("validation loss by position/09-16")
    assert (event.step, event.value) == (8, pytest.approx(expected[-1], rel=1e-6))
