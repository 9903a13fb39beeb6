"""The machine that was measured on, in words."""

import os
import platform
from pathlib import Path

import torch


def machine(device_type: str, num_threads: int) -> str:
    """Processor, threads, the GPU that is used, and torch."""
    parts = [f"{processor()}, {os.cpu_count()} CPUs", f"{num_threads} thread{'s' * (num_threads != 1)}"]
    if device_type == "cuda":
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"torch {torch.__version__}"])


def processor() -> str:
    """What Linux calls it, or Python on another system."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
