"""The commit of a package's sources, asked of repositories that are made for it."""

import os
import subprocess
from pathlib import Path

import pytest

from megatron_mep.commit import Commit, commit_of, differences


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository of one commit."""
    folder = tmp_path / "clone" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "model.py").write_text("heads = 4\n")
    (folder.parent / ".gitignore").write_text("__pycache__\n")
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", "-A")
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    git(folder.parent, *identity, "commit", "-qm", "first")
    return folder


def test_a_clean_clone_tells_its_commit(package: Path) -> None:
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "model.pyc").write_text("compiled")
    sha = git(package, "rev-parse", "HEAD")
    assert commit_of(package) == Commit(sha, changed=False)
    assert str(commit_of(package)) == sha
    assert differences(package) == ""


@pytest.mark.parametrize("file", ["model.py", "unknown.py"])
def test_a_changed_and_an_unknown_file_of_the_package_are_told(package: Path, file: str) -> None:
    (package / file).write_text("heads = 8\n")
    found = commit_of(package)
    assert found is not None
    assert found.changed
    assert str(found) == f"{git(package, 'rev-parse', 'HEAD')} with changes"
    told = differences(package)
    assert told is not None
    assert f"package/{file}" in told
    assert ("+heads = 8" in told) == (file == "model.py")


def test_what_changes_beside_the_package_is_no_change_of_it(package: Path) -> None:
    (package.parent / "notes.txt").write_text("unknown")
    assert commit_of(package) == Commit(git(package, "rev-parse", "HEAD"), changed=False)


def test_a_package_that_is_installed_inside_of_another_repository_has_no_commit(package: Path) -> None:
    installed = package.parent / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert commit_of(installed) is None


def test_no_repository_and_no_commit_yet_have_none(tmp_path: Path, package: Path) -> None:
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "__init__.py").write_text("")
    git(tmp_path, "add", "__init__.py")
    assert commit_of(tmp_path) is None


def test_a_repository_that_variables_name_is_not_the_packages(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = git(package, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit_of(package) == Commit(sha, changed=False)


def test_asking_leaves_the_index_alone(package: Path) -> None:
    index = package.parent / ".git" / "index"
    # of another age than the index has it, which Git would write down
    os.utime(package / "model.py", (1, 1))
    before = index.read_bytes()
    assert commit_of(package) == Commit(git(package, "rev-parse", "HEAD"), changed=False)
    assert index.read_bytes() == before


def fake_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_without_git_there_is_none(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(package) is None


def test_a_git_that_refuses_tells_none(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(tmp_path, "echo fatal: detected dubious ownership >&2; exit 128", monkeypatch)
    assert commit_of(package) is None


def test_a_git_that_never_answers_is_left(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(tmp_path, "exec /bin/sleep 60", monkeypatch)
    monkeypatch.setattr("megatron_mep.commit.TIMEOUT_S", 0.05)
    assert commit_of(package) is None


def test_changes_that_git_does_not_tell_are_told_to_be_unknown(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_git(tmp_path, 'case "$*" in *status*) exit 1;; *rev-parse*) echo 12ab;; esac', monkeypatch)
    assert commit_of(package) == Commit("12ab", changed=None)
    assert str(commit_of(package)) == "12ab, changes unknown"
    assert differences(package) is None
