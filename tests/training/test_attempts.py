import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from megatron_mep.config.errors import Mistake, TrainingError
from megatron_mep.training.attempts import AttemptLog, Finished, unfinish
from megatron_mep.training.stopping import Stopped


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("error", "reason", "exit_code"),
    [
        (None, "finished", 0),
        (Stopped("SIGUSR1"), "SIGUSR1", 75),
        (TrainingError(Mistake("loss", None, "is not finite", "do something")), "loss: is not finite; do something", 3),
        (RuntimeError("first line\nsecond"), "RuntimeError: first line", 1),
        (KeyboardInterrupt(), "KeyboardInterrupt: ", 1),
    ],
)
def test_each_job_leaves_two_lines_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, reason: str, exit_code: int
):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    with suppress(type(error) if error else ()), AttemptLog(tmp_path, 4, writes=True) as log:
        log.begin(3)
        log.step = 5
        if error is not None:
            raise error
    start, end = lines(tmp_path)
    for line, event, step in ((start, "start", 3), (end, "end", 5)):
        assert (line["event"], line["step"], line["job_id"], line["restart_count"]) == (event, step, 17, 2)
        assert line["time"].endswith("+00:00")
    assert (start["world_size"], start["nodes"]) == (4, "node[1-2]")
    assert (end["reason"], end["exit_code"]) == (reason, exit_code)
    assert start["process"] == end["process"]


def test_what_is_told_of_the_end_first_counts(tmp_path: Path):
    with suppress(RuntimeError), AttemptLog(tmp_path, 1, writes=True) as log:
        log.begin(0)
        log.end("hangs", 70)
        raise RuntimeError
    assert [line.get("reason") for line in lines(tmp_path)] == [None, "hangs"]


def test_a_refused_start_is_told_only_in_a_run_that_is_there(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(TrainingError), AttemptLog(folder, 1, writes=True):
            raise TrainingError(Mistake("key", 1, "rule", "remedy"))
    assert [line["step"] for line in lines(tmp_path)] == [None, None]
    assert not (tmp_path / "new").exists()


def test_one_rank_alone_writes(tmp_path: Path):
    with AttemptLog(tmp_path, 2, writes=False) as log:
        log.begin(0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("loss", "stored"), [(2.5, 2.5), (math.nan, None), (math.inf, None)])
def test_the_end_of_a_run_is_read_as_it_was_written(tmp_path: Path, loss: float, stored: float | None):
    assert Finished.read(tmp_path) is None
    Finished.now(8, loss).write(tmp_path)
    finished = Finished.read(tmp_path)
    assert finished is not None
    assert (finished.step, finished.loss) == (8, stored)
    unfinish(tmp_path)
    assert Finished.read(tmp_path) is None
    unfinish(tmp_path)
