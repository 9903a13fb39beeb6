"""`mep status`: what became of a run and what comes next, from what its folder holds."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_mep import cli
from megatron_mep.config.errors import UserError
from megatron_mep.launcher.status import status_of
from tests.launcher.stubs import Slurm
from tests.support.runs import run_tree

START = {"event": "start", "time": "T1", "host": "node1", "process": 1, "job_id": 4242, "restart_count": 0,
         "step": 0, "world_size": 4, "nodes": "node[1-2]"}  # fmt: skip
END = {**START, "event": "end", "time": "T2", "step": 2, "reason": "SIGUSR1", "exit_code": 75}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of 4 steps that was started nowhere yet."""
    run = tmp_path / "runs" / "smallest"
    run.mkdir(parents=True)
    (run / "run.yaml").write_text(yaml.safe_dump(run_tree()), encoding="utf-8")
    return run


def write(file: Path, *records: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def checkpoint(folder: Path, step: int) -> None:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "latest").write_text(f"step_{step:08d}\n", encoding="utf-8")


def test_a_folder_that_is_no_run(tmp_path: Path):
    with pytest.raises(UserError, match="is not the folder of a run; give one, for example"):
        status_of(tmp_path)


def test_a_run_that_was_not_started(folder: Path):
    status = status_of(folder)
    assert (status.state, status.step, status.checkpoint) == ("not started", 0, None)
    assert status.next == f"mep train {folder}/run.yaml"


def test_a_finished_run(folder: Path):
    (folder / "finished.json").write_text('{"step": 4}', encoding="utf-8")
    status = status_of(folder)
    assert (status.state, status.step, status.next) == ("finished", 4, f"mep evaluate {folder}")


def test_a_finished_run_of_which_more_steps_are_asked(folder: Path):
    (folder / "finished.json").write_text('{"step": 3}', encoding="utf-8")
    assert status_of(folder).state == "not started"


def test_attempts_are_told_with_the_reason_of_their_end(folder: Path):
    write(folder / "attempts.jsonl", START, END, {**START, "time": "T3", "restart_count": 1, "step": 2})
    checkpoint(folder, 2)
    write(folder / "metrics.jsonl", {"step": 3, "loss": 5.5, "tokens_per_s": 1234.5})
    status = status_of(folder)
    assert status.state == "lost"
    assert (status.step, status.checkpoint, status.loss) == (3, "step_00000002", 5.5)
    assert [(each.first_step, each.last_step, each.reason) for each in status.attempts] == [
        (0, 2, "SIGUSR1"),
        (2, None, None),
    ]
    told = str(status)
    assert "T1  job 4242, restart 0, node[1-2]: from step 0 to 2, SIGUSR1 (exit code 75)" in told
    assert "T3  job 4242, restart 1, node[1-2]: from step 2, no end was noted" in told
    assert "step         3 of 4, 75.0%" in told
    assert "1,234" in told


def test_an_attempt_that_is_seen_to_run_here(folder: Path):
    here = {**START, "host": socket.gethostname(), "nodes": None, "process": os.getpid()}
    write(folder / "attempts.jsonl", here)
    assert status_of(folder).state == "running"


def test_a_run_of_several_ranks_is_continued_on_as_many(folder: Path):
    write(folder / "attempts.jsonl", START, END)
    status = status_of(folder)
    assert (status.state, status.next) == ("ended", f"mep launch {folder}/run.yaml --local 4")


def test_a_run_is_continued_as_it_was_launched(folder: Path):
    for name, command in (("20300101-120000", "mep launch old"), ("20300102-120000", "mep launch new")):
        (folder / "launch" / name).mkdir(parents=True)
        (folder / "launch" / name / "command.txt").write_text(command + "\n", encoding="utf-8")
    write(folder / "attempts.jsonl", START, END)
    assert status_of(folder).next == "mep launch new"


def test_a_mistake_is_to_be_put_right_first(folder: Path):
    write(folder / "attempts.jsonl", START, {**END, "exit_code": 2, "reason": "data.folder: must be there"})
    assert status_of(folder).next.startswith("put right what it ended for, then ")


def test_a_stopped_run_goes_on_once_the_file_is_gone(folder: Path):
    write(folder / "attempts.jsonl", START, END)
    (folder / "STOP").touch()
    status = status_of(folder)
    assert (status.state, status.next.partition(" && ")[0]) == ("stopped", f"rm {folder}/STOP")


def test_the_log_of_the_last_job_is_shown(folder: Path):
    log = folder / "logs" / "4242.log"
    log.parent.mkdir()
    log.write_text("".join(f"line {number}\n" for number in range(30)), encoding="utf-8")
    write(folder / "launch" / "jobs.jsonl",
          {"event": "start", "job": "4242", "log": str(log)},
          {"event": "end", "job": "4242", "reason": "gives up"})  # fmt: skip
    status = status_of(folder)
    assert (status.log, status.last_words, status.state) == (str(log), "4242: gives up", "ended")
    assert status.log_lines == tuple(f"line {number}" for number in range(22, 30))
    assert "    | line 29\n" in str(status)


def test_a_line_cut_short_by_a_kill_is_passed_over(folder: Path):
    write(folder / "attempts.jsonl", START, END)
    with (folder / "attempts.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"event": "sta')
    assert len(status_of(folder).attempts) == 1


@pytest.mark.parametrize(("state", "known"), [("PENDING", "queued"), ("RUNNING", "running")])
def test_slurm_knows_of_jobs_that_wait_or_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, known: str
):
    slurm = Slurm(tmp_path)
    for name in ("PATH", "FOLDER"):
        monkeypatch.setenv(name, slurm.environment[name])
    monkeypatch.setenv("QUEUE", f"4242|{state}|(Priority)\n")
    write(folder / "launch" / "jobs.jsonl", {"event": "submit", "job": "4242"})
    status = status_of(folder)
    assert (status.state, status.next) == (known, "wait")
    assert f"job 4242     {state} (Priority)" in str(status)
    assert slurm.asked == ["squeue --noheader --jobs=4242 --format=%i|%T|%R"]


def test_it_is_told_to_programs_too(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder / "attempts.jsonl", START, END)
    assert cli.main(["status", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["attempts"][0]["exit_code"]) == ("ended", 75)
