from pathlib import Path

import pytest

from megatron_mep.data.folder import written_whole


def write(folder: Path, text: str, reason: type[BaseException] | None = None) -> None:
    with written_whole(folder) as partial:
        (partial / "file").write_text(text)
        if reason is not None:
            raise reason


def test_a_folder_appears_when_it_is_whole(tmp_path):
    with written_whole(tmp_path / "a" / "b") as partial:
        (partial / "file").write_text("text")
        assert not (tmp_path / "a" / "b").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b" / "file").read_text() == "text"


@pytest.mark.parametrize("reason", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_one_that_fails(tmp_path, reason):
    with pytest.raises(reason):
        write(tmp_path / "a", "text", reason)
    assert not list(tmp_path.iterdir())


def test_of_two_writers_the_first_wins(tmp_path):
    late = written_whole(tmp_path / "a")
    (late.__enter__() / "file").write_text("late")
    write(tmp_path / "a", "early")
    with pytest.raises(FileExistsError):
        late.__exit__(None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a" / "file").read_text() == "early"


def test_replacing_leaves_the_new_one_alone(tmp_path):
    for text in ("old", "new"):
        with written_whole(tmp_path / "a", replace=True) as partial:
            (partial / text).write_text(text)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["new"]


def test_replacing_keeps_the_old_one_when_the_new_one_fails(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("old")
    with pytest.raises(ValueError, match="fails"), written_whole(tmp_path / "a", replace=True):
        raise ValueError("fails")
    assert (tmp_path / "a" / "old").read_text() == "old"
