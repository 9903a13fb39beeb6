"""The compiled kernel of toeplitz attention: built at its first use, kept in the user's cache, or absent for a reason.

A file is named after all that its code depends on, the processor too, since home directories are shared by unlike
machines. It is written under another name and then moved into place, so that processes may build it at the same time.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).with_name("cpp")
MAIN_SOURCE = SOURCES / "toeplitz.cpp"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=gnu++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")
TIMEOUT_S = 120


class AbsentError(Exception):
    """There is no kernel on this machine: the message says why."""


@functools.cache
def kernel() -> ctypes.CDLL | str:
    """The library of `toeplitz.cpp`, for the whole process the same; or why there is none."""
    try:
        return load()
    except AbsentError as absent:
        return str(absent)


def why_absent() -> str | None:
    """Why there is no kernel, where there is none."""
    found = kernel()
    return found if isinstance(found, str) else None


def load() -> ctypes.CDLL:
    """The library, compiled if no earlier process left it in the cache; an `AbsentError` where it cannot be had."""
    compiler = _compiler()
    version = _output_of([*compiler, "--version"])
    sources = [path.read_text() for path in sorted(SOURCES.iterdir()) if path.is_file()]
    made_of = (*sources, *compiler, version, *FLAGS, _processor())
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:32]
    path = _cache() / f"{name}.so"
    try:
        if path.exists():
            # one that is damaged is made anew
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(path))
        _compile(compiler, path)
    except OSError as error:
        raise AbsentError(f"it cannot be kept in the cache of the user: {error}") from error
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise AbsentError(f"what {compiler[0]} made of it does not load: {error}") from error


def _compiler() -> list[str]:
    """The command of `$CXX`, or of the first compiler that there is."""
    named = os.environ.get("CXX", "")
    try:
        command = shlex.split(named)
    except ValueError as error:
        raise AbsentError(f"CXX={named} is no command: {error}") from error
    found = [shutil.which(name) for name in (command[:1] or COMPILERS)]
    paths = [path for path in found if path]
    if not paths:
        raise AbsentError(f"there is no C++ compiler: {command[0] if command else ', '.join(COMPILERS)}")
    return [paths[0], *command[1:]]


def _cache() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # a relative path does not count, says the specification of the variable
        return (named if named.is_absolute() else Path.home() / ".cache") / "megatron_mep"
    except RuntimeError as error:
        raise AbsentError(f"there is no place to keep it: {error}") from error


def _processor() -> str:
    """What the compiler may make use of."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    told = {line for line in lines if line.partition(":")[0].strip() in ("model name", "flags", "Features", "CPU part")}
    return "\n".join([platform.machine(), platform.processor(), *sorted(told)])


def _compile(compiler: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        _output_of([*compiler, *FLAGS, str(MAIN_SOURCE), "-o", str(made)])
        made.replace(path)


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_S, check=True
        )
    except OSError as error:
        raise AbsentError(f"{command[0]} does not run: {error}") from error
    except subprocess.CalledProcessError as error:
        said = [*(error.stderr or error.stdout).strip().splitlines(), f"exit status {error.returncode}"]
        # before the first error stands where it was included
        told = next((line for line in said if "error" in line), said[0])
        raise AbsentError(f"{command[0]} does not compile it: {told}") from error
    except subprocess.TimeoutExpired as error:
        raise AbsentError(f"{command[0]} takes more than {TIMEOUT_S} s") from error
    return done.stdout
