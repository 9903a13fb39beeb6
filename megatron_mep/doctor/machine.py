"""What the machine gives a run: memory to share, files, a compiler, places to write."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from megatron_mep.doctor.finding import Finding, ok, red, warn

GIB = 2**30
SHARED_WANTED, DISK_WANTED = GIB, 10 * GIB
FILES_NEEDED, FILES_WANTED = 1024, 4096
"""Open files of one process: sockets to all other ranks, shards of a corpus and of a checkpoint."""
LOCKED_WANTED = 64 * 2**20
CACHES = (
    ("XDG_CACHE_HOME", "~/.cache", "compiled attention"),
    ("HF_HOME", "~/.cache/huggingface", "datasets"),
    ("TRITON_CACHE_DIR", "~/.triton/cache", "compiled GPU kernels"),
    ("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions", "DeepSpeed's operations"),
    ("TMPDIR", tempfile.gettempdir(), "scratch"),
)
"""The variable that names a cache, where it is without, and what it holds."""


def machine(runs: Path) -> Iterator[Finding]:
    """All of it; `runs` is where runs are written."""
    yield shared_memory(Path("/dev/shm"))
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], _has_fast_network())
    yield compiler()
    for name, usual, holds in CACHES:
        yield cache(name, Path(os.environ.get(name) or usual).expanduser(), holds)
    yield disk(runs)


def shared_memory(folder: Path) -> Finding:
    """By which NCCL and workers of one node hand data over."""
    if not folder.is_dir():
        return warn(str(folder), "is not there", "mount a tmpfs on it: NCCL's ranks of one node share memory by it")
    free = shutil.disk_usage(folder).free
    if free < SHARED_WANTED:
        remedy = "remove what is left in it, or start the container with --shm-size=8g (--ipc=host)"
        return warn(str(folder), f"{free / GIB:.2f} GiB are free", remedy)
    return ok(str(folder), f"{free / GIB:.1f} GiB are free")


def open_files(soft: int, hard: int) -> Finding:
    """The limit of one process."""
    told = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} in a process"
    remedy = f"ulimit -n {FILES_WANTED} in the job's script (the hard limit is {hard:,})"
    if soft == resource.RLIM_INFINITY or soft >= FILES_WANTED:
        return ok("open files", told)
    return (red if soft < FILES_NEEDED else warn)("open files", told, remedy)


def locked_memory(soft: int, fast_network: bool) -> Finding:
    """What InfiniBand registers its buffers within."""
    if soft == resource.RLIM_INFINITY or soft >= LOCKED_WANTED:
        told = "no limit" if soft == resource.RLIM_INFINITY else f"{soft / 2**20:,.0f} MiB"
        return ok("locked memory", told)
    told = f"{soft / 2**20:,.2f} MiB"
    if not fast_network:
        return ok("locked memory", f"{told}, enough without InfiniBand")
    return red("locked memory", told, "ulimit -l unlimited; under SLURM its daemons must be started with that limit")


def compiler() -> Finding:
    """For attention's own C++ kernel on a CPU; its being built is tried elsewhere."""
    named = os.environ.get("CXX", "").split()[:1]
    found = next((path for name in named or ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
    if found is None:
        remedy = "install g++ or clang++, or set CXX; without one, attention on a CPU is slower"
        return warn("C++ compiler", f"{named[0] if named else 'none'} is not there", remedy)
    return ok("C++ compiler", found)


def cache(name: str, folder: Path, holds: str) -> Finding:
    """Whether what is made at run time can be kept; every rank of a node writes there."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there):
            return ok(name, f"{folder}, for {holds}, can be written")
    except OSError as error:
        return red(name, f"{folder}, for {holds}, cannot be written: {error}", f"set {name} to a folder that can")


def disk(runs: Path) -> Finding:
    """Room for checkpoints: 16 bytes a weight in each."""
    there = next(place for place in (runs.absolute(), *runs.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    told = f"{free / GIB:,.0f} GiB are free for runs in {there}"
    if free < DISK_WANTED:
        return warn(
            "disk", told, "a checkpoint takes 12 to 16 bytes a weight: set checkpoint.keep, or runs to another disk"
        )
    return ok("disk", told)


def _has_fast_network() -> bool:
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())
