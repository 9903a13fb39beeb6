"""How the kernel is built: once for a machine, by as many processes as like; or why it is absent."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_mep.attention import cpu_rows, native
from megatron_mep.attention.native import AbsentError, load

PROBE = "from megatron_mep.attention.native import load; print(load().toeplitz_rows())"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "megatron_mep"


@pytest.fixture
def compiler() -> str:
    """The command that `load` would find."""
    found = next(filter(None, map(shutil.which, native.COMPILERS)), None)
    if found is None:
        pytest.skip(f"no C++ compiler: {', '.join(native.COMPILERS)}")
    return found


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_built_once(cache, compiler, tmp_path, monkeypatch):
    told = tmp_path / "told"
    monkeypatch.setenv("CXX", script(tmp_path / "counting", f'echo "$@" >> {told}; exec {compiler} "$@"'))
    assert load().toeplitz_rows() == load().toeplitz_rows() > 0
    commands = told.read_text().splitlines()
    assert sum("-shared" in command for command in commands) == 1
    assert [path.suffix for path in cache.iterdir()] == [".so"], "and leaves nothing else"


@pytest.mark.usefixtures("compiler")
def test_processes_may_build_it_at_once(cache):
    command = [sys.executable, "-c", PROBE]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(2)]
    answers = [builder.communicate(timeout=120)[0] for builder in builders]
    assert answers[0] == answers[1] != ""
    assert len(list(cache.iterdir())) == 1


def test_another_processor_gets_another_file(cache, compiler, monkeypatch):
    monkeypatch.setattr(native, "FLAGS", tuple("-O1" if flag == "-O3" else flag for flag in native.FLAGS))
    load()
    monkeypatch.setattr(native, "_processor", lambda: "another")
    load()
    assert len(list(cache.iterdir())) == 2, compiler


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_it_is_absent(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AbsentError, match=r"no C\+\+ compiler: g\+\+, clang\+\+, c\+\+"):
        load()
    monkeypatch.setenv("CXX", "missing -O9")
    with pytest.raises(AbsentError, match=r"no C\+\+ compiler: missing"):
        load()
    monkeypatch.setenv("CXX", 'missing "-O9')
    with pytest.raises(AbsentError, match='CXX=missing "-O9 is no command'):
        load()


def test_a_compiler_that_does_not_run_says_why(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path / "broken", "exit"))
    (tmp_path / "broken").write_bytes(b"\0 no program")
    with pytest.raises(AbsentError, match=r"broken does not run: .*format"):
        load()
    assert not cache.exists()


def test_a_compiler_that_fails_says_why(cache, tmp_path, monkeypatch):
    # in bytes that are no text, and not in its first line
    told = r"printf 'In file included:\ntoeplitz.cpp:7: error: no such flag \351\n' >&2; exit 1"
    failing = script(tmp_path / "failing", f'test "$1" = --version || {{ {told}; }}')
    monkeypatch.setenv("CXX", failing)
    with pytest.raises(AbsentError, match=r"failing does not compile it: toeplitz\.cpp:7: error: no such flag"):
        load()
    assert list(cache.iterdir()) == []


def test_a_compiler_that_hangs_is_left(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path / "hanging", "exec sleep 60"))
    monkeypatch.setattr(native, "TIMEOUT_S", 0.1)
    with pytest.raises(AbsentError, match=r"hanging takes more than 0.1 s"):
        load()
    assert not cache.exists()


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_cannot_be_written_makes_it_absent(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(AbsentError, match="cannot be kept in the cache of the user"):
        load()


def test_a_file_that_does_not_load_makes_it_absent(cache, tmp_path, monkeypatch):
    writing = 'while [ "$1" != -o ]; do test "$1" = --version && exit 0; shift; done; echo no library > "$2"'
    monkeypatch.setenv("CXX", script(tmp_path / "writing", writing))
    with pytest.raises(AbsentError, match="writing made of it does not load"):
        load()
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("compiler")
def test_a_damaged_file_is_made_anew(cache):
    command = [sys.executable, "-c", PROBE]
    expected = subprocess.check_output(command)
    (made,) = cache.iterdir()
    whole = made.stat().st_size
    made.write_text("no library")
    assert subprocess.check_output(command) == expected
    assert made.stat().st_size == whole


def test_a_user_without_a_home_has_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path / "unused", "exit"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AbsentError, match="no place to keep it"):
        load()
    assert {path.name for path in tmp_path.iterdir()} == {"unused"}


def test_why_it_is_absent_is_found_once(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "missing")
    native.kernel.cache_clear()
    try:
        assert "missing" in cpu_rows.why_absent()
        monkeypatch.setenv("CXX", script(tmp_path / "unused", f"touch {tmp_path / 'used'}"))
        assert "missing" in cpu_rows.why_absent()
        assert not (tmp_path / "used").exists()
    finally:
        native.kernel.cache_clear()
    assert not cache.exists()
