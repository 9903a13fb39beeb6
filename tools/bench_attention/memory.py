"""The peak memory of a program: of a process of its own on a CPU, of torch's allocator on a GPU."""

import ctypes
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from tools.bench_attention.contenders import Contender, program
from tools.bench_attention.problem import Case, Shape, inputs_of

WARM_UP_LENGTH = 32

Result = TypeVar("Result")


def peak_mib(contender: Contender, shape: Shape, case: Case, num_threads: int) -> float:
    """Above the inputs (query, key, value, bias, output gradient), outputs and gradients included."""
    if shape.device_type == "cuda":
        return _peak_on_gpu(contender, shape, case)
    return in_child(_peak_of_process, contender, shape, case, num_threads)


def in_child(function: Callable[..., Result], *args: object) -> Result:
    """What the function returns in a forked process; before this one has threads, which a child would wait for."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, args)


def status_kib(field: str) -> int:
    """A size that Linux keeps of this process: `VmRSS`, what is resident; `VmHWM`, the most that was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def forget_peak() -> None:
    """Give back what was freed, and let the peak start anew from what is resident (both on Linux with glibc)."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _peak_of_process(contender: Contender, shape: Shape, case: Case, num_threads: int) -> float:
    """After a warm-up that loads code and threads, short so that what a contender keeps is counted."""
    torch.set_num_threads(num_threads)
    _warm_up(contender, shape, case)
    inputs = inputs_of(shape)
    forget_peak()
    before_kib = status_kib("VmRSS")
    program(contender, inputs, case)()
    return (status_kib("VmHWM") - before_kib) / 1024


def _peak_on_gpu(contender: Contender, shape: Shape, case: Case) -> float:
    _warm_up(contender, shape, case)
    inputs = inputs_of(shape)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    program(contender, inputs, case)()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _warm_up(contender: Contender, shape: Shape, case: Case) -> None:
    warm_shape = shape if contender.by_length else replace(shape, length=WARM_UP_LENGTH)
    program(contender, inputs_of(warm_shape), case)()
