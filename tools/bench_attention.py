"""Times a distance bias against no bias: toeplitz attention and unbiased causal SDPA on a CPU.

Both run in one process on the same tensors, in pairs whose order alternates; a pair gives one ratio, toeplitz over
unbiased, and the table shows the median ratio with its quartiles, so that what else the machine does cancels out.
On a busy machine `--threads 1 --clock cpu` is steadier. Memory is the peak resident size of a forked child above its
inputs (query, key, value, bias, output gradient), outputs and gradients included.

    python -m tools.bench_attention --lengths 1024 4096 --heads 8 --head-size 64
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.toeplitz import toeplitz_attention

CASES = ("forward", "forward+backward, fixed bias", "forward+backward, learned bias")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
HEADER = f"""\
{"":6} {"":31} {"unbiased":>9} {"toeplitz":>9} {"toeplitz / unbiased":^23} {"unbiased":>9} {"toeplitz":>9}
{"length":>6} {"case":31} {"ms":>9} {"ms":>9} {"median (quartiles)":^23} {"MiB":>9} {"MiB":>9}"""


@dataclass(frozen=True)
class Shape:
    """Of one attention; query and key have equal lengths."""

    batch: int
    heads: int
    groups: int
    length: int
    head_size: int
    layout: str


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    length: int
    case: str
    unbiased_ms: float
    toeplitz_ms: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    unbiased_mib: float
    toeplitz_mib: float


def main() -> None:
    """Measures memory in children first: a child of a process with busy threads would hang."""
    options = parse()
    shapes = [
        Shape(options.batch, options.heads, options.groups or options.heads, length, options.head_size, options.layout)
        for length in options.lengths
    ]
    cases = [(shape, case) for shape in shapes for case in CASES]
    memory = [memory_mib(shape, case, options.threads) for shape, case in cases]
    torch.set_num_threads(options.threads)
    settings = {"torch": torch.__version__} | vars(options)
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    print(HEADER, flush=True)
    rows = []
    for case, sizes in zip(cases, memory, strict=True):
        rows.append(measure(*case, options.pairs, CLOCKS[options.clock], sizes))
        print(line(rows[-1]), flush=True)
    if options.json:
        report = {"settings": settings, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=1, default=str))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--groups", type=int, help="key/value heads; default: as many as heads")
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--layout", choices=["bhsd", "sbhd"], default="bhsd", help="memory order; sbhd is Megatron's")
    parser.add_argument("--pairs", type=int, default=11, help="timed pairs of each case, at least 2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    return parser.parse_args()


def measure(shape: Shape, case: str, num_pairs: int, clock: Callable[[], float], memory: tuple[float, float]) -> Row:
    """Time one case in alternating pairs."""
    programs = pair(shape, case)
    seconds: tuple[list[float], list[float]] = ([], [])
    for program in programs:
        program()
    for index in range(num_pairs):
        for which in (0, 1) if index % 2 else (1, 0):
            start = clock()
            programs[which]()
            seconds[which].append(clock() - start)
    ratios = [toeplitz / unbiased for unbiased, toeplitz in zip(*seconds, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    unbiased_ms, toeplitz_ms = (1e3 * median(times) for times in seconds)
    return Row(shape.length, case, unbiased_ms, toeplitz_ms, middle, (low, high), *memory)


def pair(shape: Shape, case: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """The programs without and with the bias, on the same tensors."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, grad = (
        heads(shape, num, generator) for num in (shape.heads, shape.groups, shape.groups, shape.heads)
    )
    slope = 2.0 ** -torch.linspace(1, 8, shape.heads)
    bias = -slope[:, None] * torch.arange(shape.length, dtype=torch.float32)
    scale = shape.head_size**-0.5

    def unbiased() -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=shape.groups != shape.heads
        )

    def toeplitz() -> Tensor:
        return toeplitz_attention(query, key, value, bias, scale=scale)

    if case == "forward":
        return unbiased, toeplitz
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    biased_inputs = [*inputs, bias.requires_grad_()] if case.endswith("learned bias") else inputs
    return (
        lambda: torch.autograd.grad(unbiased(), inputs, grad),
        lambda: torch.autograd.grad(toeplitz(), biased_inputs, grad),
    )


def heads(shape: Shape, num: int, generator: torch.Generator) -> Tensor:
    """Random `[B, num, S, D]` in the layout asked for."""
    if shape.layout == "bhsd":
        return torch.randn(shape.batch, num, shape.length, shape.head_size, generator=generator)
    return torch.randn(shape.length, shape.batch, num, shape.head_size, generator=generator).permute(1, 2, 0, 3)


def memory_mib(shape: Shape, case: str, num_threads: int) -> tuple[float, float]:
    """Peak memory above the inputs of both programs, each in a child of its own."""
    sizes = []
    for which in (0, 1):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            sizes.append(pool.apply(own_memory_mib, (shape, case, which, num_threads)))
    return sizes[0], sizes[1]


def own_memory_mib(shape: Shape, case: str, which: int, num_threads: int) -> float:
    """Peak resident memory of this process above the inputs, after a small warm-up that loads code and threads."""
    torch.set_num_threads(num_threads)
    pair(replace(shape, length=32), case)[which]()
    program = pair(shape, case)[which]
    # on Linux: the peak starts anew from the present resident size
    Path("/proc/self/clear_refs").write_text("5")
    before_kib = status_kib("VmRSS")
    program()
    return (status_kib("VmHWM") - before_kib) / 1024


def status_kib(field: str) -> int:
    """A size that the kernel keeps of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def line(row: Row) -> str:
    """The row as a line under `HEADER`."""
    low, high = row.ratio_quartiles
    ratio = f"{row.ratio:.3f} ({low:.3f}-{high:.3f})"
    times = f"{row.unbiased_ms:9.1f} {row.toeplitz_ms:9.1f}"
    return f"{row.length:6} {row.case:31} {times} {ratio:^23} {row.unbiased_mib:9.1f} {row.toeplitz_mib:9.1f}"


if __name__ == "__main__":
    main()
