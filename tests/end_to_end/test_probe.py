"""`mep probe` on a checkpoint of a tiny run: rows, two layouts that agree, and what is refused."""

import os
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from torch import distributed

from megatron_mep import cli
from megatron_mep.evaluation.rows import rows_of_kind
from megatron_mep.probes.rows import ProbeRow
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import describe_rank, job, train_on
from tests.support.distributed import run as run_ranks

SUITE = """# Two tasks.
probes:
  retrieval:
    tasks: [{name: passkey}, {name: variable_tracking, hops: 1}]
    lengths: [160, 240]
    depths: [0, 1]
    samples: 3
  formal:
    tasks: [{name: copy, letters: 2}]
    lengths: [3]
    samples: 5
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("probe")
    corpus(folder)
    run = job(folder)
    train_on(1, run)
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    return run


def probed(run: RunConfig, to: Path, *overrides: str, world_size: int = 1) -> tuple[list[ProbeRow], str]:
    """The rows, and what the first rank was told."""
    suite = str(Path(run.runs).parent / "suite.yaml")
    command = ["probe", str(run.folder), "--suite", suite, "--to", str(to / "rows.jsonl"), *overrides]
    run_ranks(_probe, world_size, to, command)
    told = (to / "0.txt").read_text(encoding="utf-8")
    return (rows_of_kind(to / "rows.jsonl", ProbeRow) if (to / "rows.jsonl").exists() else []), told


def _probe(to: Path, command: Sequence[str]) -> None:
    describe_rank()
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        code = cli.main(command)
    text = f"exit code {code}\n{output.getvalue()}{errors.getvalue()}"
    (to / f"{os.environ['RANK']}.txt").write_text(text, encoding="utf-8")
    assert distributed.is_initialized() == (code != 0), "a refusal comes before the groups are made"


@pytest.fixture(scope="module")
def alone(trained: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[ProbeRow], str]:
    return probed(trained, tmp_path_factory.mktemp("alone"))


def test_there_is_a_row_for_every_task_length_and_depth(trained: RunConfig, alone: tuple[list[ProbeRow], str]):
    rows, told = alone
    assert told.startswith("exit code 0\n")
    asked = [(row.kind, row.task, row.length, row.depth, row.num_samples) for row in rows]
    assert asked == [
        ("retrieval", "passkey", 160, 0.0, 3),
        ("retrieval", "passkey", 160, 1.0, 3),
        ("retrieval", "passkey", 240, 0.0, 3),
        ("retrieval", "passkey", 240, 1.0, 3),
        ("retrieval", "variable_tracking", 160, None, 3),
        ("retrieval", "variable_tracking", 240, None, 3),
        ("formal", "copy", 3, None, 5),
    ]
    for row in rows:
        assert (row.run, row.step, row.train_length, row.encoding) == (trained.name, 8, 16, "mep")
        assert row.oracle == 100
        assert row.mean_rank is not None
        assert row.mean_rank > 1
        assert (row.found is None) == (row.kind == "formal")
    assert "passkey max_new_tokens=12  length    160  depth   0%  found " in told


def test_samples_are_kept_beside_the_corpus(trained: RunConfig, alone: tuple[list[ProbeRow], str]):
    assert alone
    assert len(list((Path(trained.data.folder) / "probes").iterdir())) == 6


@pytest.mark.parametrize("layout", [[], ["parallel.tensor=2"]], ids=["data", "tensor"])
def test_two_ranks_say_what_one_does(
    trained: RunConfig, alone: tuple[list[ProbeRow], str], tmp_path: Path, layout: list[str]
):
    rows, _ = probed(trained, tmp_path, *layout, world_size=2)
    assert len(rows) == len(alone[0])
    for ours, expected in zip(rows, alone[0], strict=True):
        assert ours.samples_hash == expected.samples_hash
        assert (ours.found, ours.exact, ours.token_accuracy) == (
            expected.found,
            expected.exact,
            expected.token_accuracy,
        )
        assert ours.nll == pytest.approx(expected.nll, rel=1e-5)


def test_what_was_answered_is_not_asked_again_at_whatever_layout(
    trained: RunConfig, alone: tuple[list[ProbeRow], str], tmp_path: Path
):
    """As after a kill while the last row was written."""
    *before, last = [row.model_dump_json() + "\n" for row in alone[0]]
    (tmp_path / "rows.jsonl").write_text("".join(before) + last[:40] + "\n", encoding="utf-8")
    command = ["probe", str(trained.folder), "--suite", str(Path(trained.runs).parent / "suite.yaml")]
    run_ranks(_probe, 2, tmp_path, [*command, "--to", str(tmp_path / "rows.jsonl")])
    told = (tmp_path / "0.txt").read_text(encoding="utf-8")
    assert told.count(f"is in {tmp_path / 'rows.jsonl'} (--again)") == len(before)
    *left, torn, added = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    assert (left, torn) == (before, last[:40] + "\n")
    assert ProbeRow.model_validate_json(added).samples_hash == alone[0][-1].samples_hash


def test_what_does_not_fit_is_refused_before_the_model_is_built(trained: RunConfig, tmp_path: Path):
    rows, told = probed(trained, tmp_path, "probes.retrieval.lengths=[20]", world_size=2)
    assert rows == []
    assert told.startswith("exit code 2\nmep: probes.retrieval.lengths = 20: must be at least ")
    assert "Traceback" not in told


def test_layouts_that_cannot_generate_are_refused(trained: RunConfig, tmp_path: Path):
    _, told = probed(trained, tmp_path, "parallel.context=2", world_size=2)
    assert told.startswith("exit code 2\nmep: parallel.context = 2: cannot be used here")
