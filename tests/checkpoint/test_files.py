import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from megatron_mep.checkpoint import files
from megatron_mep.checkpoint.files import begin, checksums, find, publish, steps_in, verify
from megatron_mep.config.errors import CheckpointError


class Killed(BaseException):
    """Stands for a kill: nothing in the code under test may catch it."""


def write(root: Path, step: int, content: str = "weights", keep: int | None = None) -> Path:
    folder = begin(root, step)
    (folder / "weights.bin").write_text(f"{content} of {step}")
    (folder / ".metadata").write_text("hidden")
    return publish(root, step, keep)


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
        "sha256": "SHA",
    }
    assert listed.keys() == {"weights.bin", ".metadata"}
    verify(folder)


def test_checksums_of_other_ranks_are_taken_as_they_are(tmp_path: Path):
    folder = begin(tmp_path, 1)
    for name in ("mine.bin", "theirs.bin"):
        (folder / name).write_text(name)
    known = checksums([folder / "theirs.bin"])
    with patch.object(files, "_sha256", return_value="mine alone"):
        publish(tmp_path, 1, None, known)
    listed = json.loads((find(tmp_path) / "checksums.json").read_text())["files"]
    assert listed["mine.bin"]["sha256"] == "mine alone"
    assert listed["theirs.bin"] == {"bytes": 10, "sha256": known["theirs.bin"][1]}


def test_what_is_being_written_is_out_of_sight(tmp_path: Path):
    root = tmp_path / "checkpoints"
    write(root, 1)
    (begin(root, 2) / "weights.bin").write_text("half")
    assert steps_in(root) == [1]
    assert find(tmp_path) == root / "step_00000001"
    # the next attempt starts empty, and is not hindered
    assert list(begin(root, 2).iterdir()) == []
    assert content(write(root, 2)) == "weights of 2"


def dying(call: int) -> Callable[..., None]:
    """A file operation that is never carried out, from the given call on."""
    calls = iter(range(1, call))

    def operation(*arguments: object, **options: object) -> None:
        if next(calls, None) is None:
            raise Killed
        original(*arguments, **options)

    original = Path.rename
    return operation


@pytest.mark.parametrize("step", [2, 1], ids=["a new one", "the same step again"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(files, "_seal"), (Path, "rename"), (files, "_sync"), (files, "write_atomically"), (files.shutil, "rmtree")],
    ids=["while it is sealed", "at a rename", "before it is synced", "before it is listed", "before the rest is removed"],
)
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_kill_at_any_instant_leaves_a_whole_checkpoint(tmp_path: Path, owner: object, name: str, call: int, step: int):
    write(tmp_path, 1)
    folder = begin(tmp_path, step)
    (folder / "weights.bin").write_text(f"new of {step}")
    with patch.object(owner, name, _dying(getattr(owner, name), call)):
        try:
            publish(tmp_path, step, keep=1)
        except Killed:
            pass
    found = find(tmp_path)
    verify(found)
    assert content(found) in ("weights of 1", f"new of {step}")
    # and the run goes on from there
    assert content(write(tmp_path, 2, keep=1)) == "weights of 2"
    assert (latest(tmp_path), steps_in(tmp_path)) == ("step_00000002", [2])
    assert not list(tmp_path.glob(".*"))
