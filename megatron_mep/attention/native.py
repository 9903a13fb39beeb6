"""The compiled kernel of toeplitz attention: built at its first use, kept in the user's cache, or absent for a reason.

A file is named after all that its code depends on, the processor too, since home directories are shared by unlike
machines. It is written under another name and then moved into place, so that processes may build it at the same time.
"""

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
    try:
        path = _cache() / f"{name}.so"
        if not path.exists():
            _compile(compiler, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise AbsentError(f"it cannot be kept in the cache of the user: {error}") from error


def _compiler() -> list[str]:
    """The command of `$CXX`, or of the first compiler that there is."""
    command = shlex.split(os.environ.get("CXX", ""))
    found = [shutil.which(name) for name in (command[:1] or COMPILERS)]
    paths = [path for path in found if path]
    if not paths:
        raise AbsentError(f"there is no C++ compiler: {command[0] if command else ', '.join(COMPILERS)}")
    return [paths[0], *command[1:]]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "megatron_mep"


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").strip().splitlines()
        told = said[0] if said else f"exit status {error.returncode}"
        raise AbsentError(f"{command[0]} does not compile it: {told}") from error
    except subprocess.TimeoutExpired as error:
        raise AbsentError(f"{command[0]} takes more than {TIMEOUT_S} s") from error
    return done.stdout
