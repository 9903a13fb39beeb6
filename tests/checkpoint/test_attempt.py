"""A writer that a later attempt has overtaken changes nothing, at whatever point it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from megatron_mep.checkpoint import files, manifest
from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.files import begin, find, publish, steps_in, take_over, verify
from megatron_mep.config.errors import CheckpointError
from tests.checkpoint.test_files import content, latest, write, written


def everything_in(root: Path) -> dict[str, bytes]:
    """What readers see."""
    visible = (file for file in root.rglob("*") if not any(part.startswith(".att") for part in file.parts))
    return {str(file.relative_to(root)): file.read_bytes() for file in visible if file.is_file()}


def overtaken(act: Callable[[], object]) -> None:
    with pytest.raises(CheckpointError, match=r"belongs to a later attempt at this run \(host .*, process \d+"):
        act()


def test_the_later_attempt_writes(tmp_path: Path):
    old = take_over(tmp_path)
    written(old, 1)
    new = take_over(tmp_path)
    assert (old.is_newest, new.is_newest) == (False, True)
    overtaken(lambda: begin(old, 2))
    overtaken(lambda: publish(old, 2, None))
    assert content(written(new, 2)) == "weights of 2"
    assert (latest(tmp_path), steps_in(tmp_path)) == ("step_00000002", [1, 2])


def test_an_attempt_that_has_ended_leaves_nothing_but_its_checkpoints(tmp_path: Path):
    killed, last = take_over(tmp_path), take_over(tmp_path)
    written(last, 1)
    last.end()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latest", "step_00000001"]
    with pytest.raises(CheckpointError, match="which has ended"):
        begin(killed, 2)


@pytest.mark.parametrize("step", [2, 3, 5], ids=["older", "the same", "newer"])
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        pytest.param(manifest, "_sha256", 1, id="while it is sealed"),
        pytest.param(manifest, "write_atomically", 1, id="before it is sealed"),
        pytest.param(files, "seal", 1, id="before the last look"),
        pytest.param(Path, "exists", 1, id="after the last look"),
    ],
)
def test_an_old_writer_changes_nothing(tmp_path: Path, owner: Any, name: str, call: int, step: int):
    write(tmp_path, 1)
    old = take_over(tmp_path)
    folder = begin(old, step)
    (folder / "weights.bin").write_text("of a writer that is overtaken")
    original = getattr(owner, name)
    seen: list[dict[str, bytes]] = []

    def overtaking(*arguments: Any, **options: Any) -> Any:
        if not seen:
            seen.append({})
            written(take_over(tmp_path), 3)
            seen[0] = everything_in(tmp_path)
        return original(*arguments, **options)

    with patch.object(owner, name, overtaking):
        overtaken(lambda: publish(old, step, keep=1))
    assert everything_in(tmp_path) == seen[0]
    assert find(tmp_path) == tmp_path / "step_00000003"
    verify(find(tmp_path))


def test_a_folder_that_a_library_makes_anew_is_not_an_attempt(tmp_path: Path):
    old = take_over(tmp_path)
    folder = begin(old, 2)
    take_over(tmp_path)
    # as torch's writer does with a folder that it does not find
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_text("of a writer that is overtaken")
    overtaken(lambda: publish(old, 2, None))
    assert steps_in(tmp_path) == []


def test_of_attempts_that_start_at_once_at_most_one_writes(tmp_path: Path):
    late: list[Attempt] = []
    original = Path.glob

    def another(self: Path, pattern: str) -> Any:
        if not late:
            late.append(Attempt(tmp_path, "late"))
            late[0] = take_over(tmp_path)
        return original(self, pattern)

    with patch.object(Path, "glob", another):
        overtaken(lambda: take_over(tmp_path))
    assert content(written(late[0], 1)) == "weights of 1"


def test_what_a_kill_left_set_aside_is_put_back(tmp_path: Path):
    write(tmp_path, 1)
    killed = take_over(tmp_path)
    killed.set_aside(tmp_path / "step_00000001")
    assert content(find(tmp_path)) == "weights of 1"
    # the next one is killed before it has put it back
    Attempt.start(tmp_path)
    assert content(find(tmp_path)) == "weights of 1"
    take_over(tmp_path)
    assert find(tmp_path) == tmp_path / "step_00000001"
    assert steps_in(tmp_path) == [1]
