"""Compiles the Triton kernels of attention ahead of time, without a GPU, and shows what each takes of one.

Calls attention on a CPU with every launch turned into a compilation, so that what is compiled is what a run launches.
The exit code is 1 where a kernel spills registers.

    python -m tools.compile_triton --arch 80 90
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from megatron_mep.attention.triton_kernels.blocks import Blocks, Launch, blocks_of
from megatron_mep.attention.triton_toeplitz import triton_toeplitz_attention

HEADER = "kernel                     arch    dtype   D  rows x keys  warps stages  registers  spilled B  shared KiB"


class NoDevice:
    """Stands for a CUDA device, as far as a compilation asks for it."""

    def __init__(self, arch: int) -> None:
        self.target = GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return self.target

    def get_current_device(self) -> int:
        """One for each architecture, since kernels are kept by device."""
        return int(self.target.arch)

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        """None is used."""
        return 0


class Compiled(NamedTuple):
    """A kernel, and the options it was launched with."""

    kernel: Any
    options: dict[str, int]


def main() -> None:
    """Prints the table."""
    options = parse()
    print(f"triton {triton.__version__}, torch {torch.__version__}\n{HEADER}")
    cases = [(arch, dtype, size) for arch in options.arch for dtype in options.dtypes for size in options.head_sizes]
    spilled = 0
    for arch, dtype, head_size in cases:
        for kernel, launch in compiled(arch, getattr(torch, dtype), head_size, options.launch):
            registers, spills = resources(kernel)
            spilled += spills
            print(
                f"{kernel.name:<26} {arch:>4} {dtype:>8} {head_size:>3}  {launch['ROWS']:>4} x {launch['KEYS']:<4}  "
                f"{launch['num_warps']:>5} {launch['num_stages']:>6}  {registers:>9}  {spills:>9}  "
                f"{kernel.metadata.shared / 1024:>10.1f}",
                flush=True,
            )
    raise SystemExit(spilled > 0)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 90], help="compute capabilities times ten")
    parser.add_argument("--head-sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], choices=["bfloat16", "float16", "float32"])
    parser.add_argument(
        "--launch",
        type=lambda text: Launch(*map(int, text.split("x"))),
        help="ROWSxKEYSxWARPSxSTAGES of all kernels, to try others than those of the device",
    )
    return parser.parse_args()


def compiled(arch: int, dtype: torch.dtype, head_size: int, launch: Launch | None) -> list[Compiled]:
    """Every kernel of a forward and a backward pass with a bias that learns, in order."""
    query, key, value = (
        torch.zeros(2, num_heads, 1024, head_size, dtype=dtype, requires_grad=True) for num_heads in (4, 2, 2)
    )
    bias = torch.zeros(4, 1024, requires_grad=True)
    major, minor = divmod(arch, 10)
    blocks = Blocks(*[launch] * 4) if launch else blocks_of((major, minor), head_size, dtype.itemsize)
    with compilation_only(arch) as kernels:
        output = triton_toeplitz_attention(query, key, value, bias, scale=head_size**-0.5, blocks=blocks)
        output.sum().backward()
    return kernels


@contextmanager
def compilation_only(arch: int) -> Iterator[list[Compiled]]:
    """Turns every launch inside into a compilation, and lists what came of it."""
    kernels: list[Compiled] = []
    run = JITFunction.run

    def compile_only(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:  # noqa: ARG001
        kernels.append(Compiled(run(function, *arguments, grid=grid, warmup=True, **options), options))

    driver.set_active(NoDevice(arch))
    with patch.object(JITFunction, "run", compile_only):
        yield kernels


def resources(kernel: Any) -> tuple[int, int]:
    """Registers of a thread, and the bytes of its stack, to which registers are spilled, as the binary states them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        Path(binary.name).write_bytes(kernel.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", binary.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack = (int(number) for number in re.findall(r"\b(?:REG|STACK):(\d+)", report))
    return registers, stack


if __name__ == "__main__":
    main()
