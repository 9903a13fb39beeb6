import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatron_mep.checkpoint import attempt, files, manifest
from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.files import begin, exists, find, locate, publish, steps_in, take_over, verify
from megatron_mep.checkpoint.manifest import checksums, faults
from megatron_mep.config.errors import CheckpointError


class Killed(BaseException):
    """Stands for a kill: nothing in the code under test may catch it."""


def write(root: Path, step: int, content: str = "weights", keep: int | None = None) -> Path:
    """A checkpoint of an attempt that then ends."""
    attempt = take_over(root)
    folder = written(attempt, step, content, keep)
    attempt.end()
    return folder


def written(attempt: Attempt, step: int, content: str = "weights", keep: int | None = None) -> Path:
    folder = begin(attempt, step)
    (folder / "weights.bin").write_text(f"{content} of {step}")
    (folder / ".metadata").write_text("hidden")
    return publish(attempt, step, keep)


def latest(root: Path) -> str:
    return (root / "latest").read_text().strip()


def content(folder: Path) -> str:
    return (folder / "weights.bin").read_text()


def mistakes(act: Callable[[], object]) -> list[tuple[str, str]]:
    with pytest.raises(CheckpointError) as caught:
        act()
    return [(Path(mistake.key).name, mistake.rule) for mistake in caught.value.mistakes]


def test_a_checkpoint_is_whole_once_it_is_in_place(tmp_path: Path):
    folder = write(tmp_path, 500)
    assert folder == tmp_path / "step_00000500"
    assert latest(tmp_path) == "step_00000500"
    assert steps_in(tmp_path) == [500]
    listed = json.loads((folder / "checksums.json").read_text())["files"]
    assert listed["weights.bin"] == {
        "bytes": 14,
        # printf 'weights of 500' | sha256sum
        "sha256": "96b27f73d82894e85a137ee5c48d0269592ee082eba68e1148f04d875005833e",
    }
    assert listed.keys() == {"weights.bin", ".metadata"}
    verify(folder)


def test_checksums_of_other_ranks_are_taken_as_they_are(tmp_path: Path):
    attempt = take_over(tmp_path)
    folder = begin(attempt, 1)
    for name in ("mine.bin", "theirs.bin"):
        (folder / name).write_text(name)
    known = checksums([folder / "theirs.bin"])
    with patch.object(manifest, "_sha256", return_value="mine alone"):
        publish(attempt, 1, None, known)
    listed = json.loads((find(tmp_path) / "checksums.json").read_text())["files"]
    assert listed["mine.bin"]["sha256"] == "mine alone"
    assert listed["theirs.bin"] == {"bytes": 10, "sha256": known["theirs.bin"][1]}


def test_what_is_being_written_is_out_of_sight(tmp_path: Path):
    root = tmp_path / "checkpoints"
    write(root, 1)
    (begin(take_over(root), 2) / "weights.bin").write_text("half")
    assert steps_in(root) == [1]
    assert find(tmp_path) == root / "step_00000001"
    # the next attempt starts empty, and is not hindered
    assert list(begin(take_over(root), 2).iterdir()) == []
    assert content(write(root, 2)) == "weights of 2"


def dying(original: Callable[..., Any], call: int) -> Callable[..., Any]:
    """An operation that kills the process in place of its n-th call."""
    calls = count(1)

    def operation(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*arguments, **options)

    return operation


@pytest.mark.parametrize("step", [2, 1], ids=["another step", "the same step"])
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        pytest.param(manifest, "_sha256", 1, id="while it is sealed"),
        pytest.param(manifest, "write_atomically", 1, id="before it is sealed"),
        pytest.param(Path, "rename", 1, id="at the first rename"),
        pytest.param(Path, "rename", 2, id="at the second rename"),
        pytest.param(files, "write_atomically", 1, id="before it is the latest"),
        pytest.param(Path, "replace", 2, id="when it becomes the latest"),
        pytest.param(attempt.shutil, "rmtree", 1, id="at the removal"),
    ],
)
def test_a_kill_at_any_instant_leaves_a_whole_checkpoint(tmp_path: Path, owner: Any, name: str, call: int, step: int):
    write(tmp_path, 1)
    killed = take_over(tmp_path)
    (begin(killed, step) / "weights.bin").write_text(f"new of {step}")
    with patch.object(owner, name, dying(getattr(owner, name), call)), pytest.raises(Killed):
        publish(killed, step, keep=1)
    found = find(tmp_path)
    verify(found)
    assert content(found) in ("weights of 1", f"new of {step}")
    # and the run goes on from there
    assert content(write(tmp_path, 2, keep=1)) == "weights of 2"
    assert (latest(tmp_path), steps_in(tmp_path)) == ("step_00000002", [2])
    assert not list(tmp_path.glob(".*"))


def test_the_same_step_is_replaced(tmp_path: Path):
    write(tmp_path, 1, "old")
    assert content(write(tmp_path, 1, "new")) == "new of 1"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latest", "step_00000001"]


@pytest.mark.parametrize(
    ("keep", "left"), [(None, [1, 2, 3, 4]), (1, [4]), (2, [3, 4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])]
)
def test_the_newest_are_kept(tmp_path: Path, keep: int | None, left: list[int]):
    for step in range(1, 5):
        write(tmp_path, step, keep=keep)
    assert steps_in(tmp_path) == left


def test_a_run_that_was_sent_back_keeps_what_it_writes(tmp_path: Path):
    for step in (1, 2, 8, 9):
        write(tmp_path, step)
    (tmp_path / "latest").write_text("step_00000002\n")
    write(tmp_path, 3, keep=1)
    assert (latest(tmp_path), steps_in(tmp_path)) == ("step_00000003", [3, 8, 9])


def test_a_path_may_be_a_run_its_checkpoints_or_one_of_them(tmp_path: Path):
    root = tmp_path / "checkpoints"
    first, second = write(root, 1), write(root, 2)
    assert find(tmp_path) == find(root) == find(second) == second
    assert find(first) == first


def test_a_foreign_folder_holds_no_checkpoint(tmp_path: Path):
    (tmp_path / "manifest.json").write_text('{"files": {}}')
    for folder in (tmp_path, tmp_path / "none"):
        assert mistakes(lambda: find(folder)) == [(folder.name, "holds no checkpoint")]  # noqa: B023


def test_a_name_that_leads_nowhere_is_refused(tmp_path: Path):
    write(tmp_path, 1)
    for text in ("step_00000002\n", "", ".", "../elsewhere", "\xff"):
        (tmp_path / "latest").write_bytes(text.encode("latin-1"))
        assert exists(tmp_path)
        assert mistakes(lambda: find(tmp_path)) == [("latest", "names a checkpoint that is not there")]
        with pytest.raises(CheckpointError, match="write step_00000001, the newest whole one, into it"):
            find(tmp_path)


def test_the_newest_counts_where_no_name_was_written(tmp_path: Path):
    assert not exists(tmp_path)
    for step in (1, 2):
        write(tmp_path, step)
    (tmp_path / "latest").unlink()
    assert exists(tmp_path)
    assert find(tmp_path) == tmp_path / "step_00000002"


def test_every_missing_damaged_and_foreign_file_is_named(tmp_path: Path):
    attempt = take_over(tmp_path)
    folder = begin(attempt, 1)
    for name in ("whole", "gone", "short", "flipped"):
        (folder / name).write_text("1234567890")
    folder = publish(attempt, 1, None)
    (folder / "foreign").write_text("1234567890")
    (folder / "gone").unlink()
    (folder / "short").write_text("123456789")
    (folder / "flipped").write_text("1234567891")
    expected = [
        ("flipped", "is damaged: its sha256 is not the one it was written with"),
        ("gone", "is missing"),
        ("short", "is damaged: 9 bytes in place of 10"),
        ("foreign", "is not part of this checkpoint"),
    ]
    assert mistakes(lambda: verify(folder)) == expected
    # two ranks find the same between them
    parts = [[(fault.file.name, fault.rule) for fault in faults(folder, rank, 2)] for rank in (0, 1)]
    assert parts == [[expected[0], expected[2], expected[3]], [expected[1]]]


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"files": []}', '{"files": {"weights.bin": {"bytes": 12}}}'])
def test_a_checkpoint_without_its_list_is_not_whole(tmp_path: Path, text: str | None):
    folder = write(tmp_path, 1)
    (folder / "checksums.json").unlink()
    if text is not None:
        (folder / "checksums.json").write_text(text)
    expected = [("checksums.json", "is missing or damaged: this is no whole checkpoint")]
    assert mistakes(lambda: verify(folder)) == expected
    # it is not taken for a folder that holds none
    assert mistakes(lambda: find(folder)) == mistakes(lambda: find(tmp_path)) == expected


def test_the_list_is_told_of_where_it_is_the_list_that_is_damaged(tmp_path: Path):
    folder = write(tmp_path, 1)
    text = (folder / "checksums.json").read_text()
    for place, letter in enumerate(text):
        (folder / "checksums.json").write_text(text[:place] + chr(ord(letter) ^ 1) + text[place + 1 :])
        (fault,) = faults(folder)
        assert fault.file.name == "checksums.json", (place, letter)


@pytest.mark.parametrize("name", [".metadata", "progress.json", "run.yaml"])
def test_what_is_read_first_is_looked_at_first(tmp_path: Path, name: str):
    attempt = take_over(tmp_path)
    folder = begin(attempt, 1)
    for file in (".metadata", "progress.json", "run.yaml", "weights.bin"):
        (folder / file).write_text("1234567890")
    folder = publish(attempt, 1, None)
    (folder / "weights.bin").write_text("")
    assert find(folder) == locate(folder) == folder
    (folder / name).write_text("1234567891")
    assert [file for file, _ in mistakes(lambda: find(folder))] == [name]


def test_the_remedy_is_the_newest_whole_checkpoint_where_there_is_one(tmp_path: Path):
    damaged = write(tmp_path, 3)
    (damaged / "weights.bin").unlink()
    with pytest.raises(CheckpointError, match="restore it from a copy, or remove the folder and train again"):
        verify(damaged)

    def told(step: int) -> str:
        return f"write step_0000000{step}, the newest whole one, into {tmp_path / 'latest'}"

    write(tmp_path, 4)
    with pytest.raises(CheckpointError, match=told(4)):
        verify(damaged)
    for step in (1, 2):
        write(tmp_path, step)
    with pytest.raises(CheckpointError, match=told(2)):
        verify(damaged)
    (tmp_path / "step_00000002" / ".metadata").write_text("hidder")
    with pytest.raises(CheckpointError, match=told(1)):
        verify(damaged)
