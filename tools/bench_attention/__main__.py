"""Times attention under MEP's bias against causal attention without a bias, and measures its memory.

All contenders work on the same tensors in one process. Each is timed in pairs with unbiased causal SDPA, whose order
alternates; a pair gives one ratio, and the table shows the median ratio with its quartiles, so that what else the
machine does cancels out. On a busy machine `--threads 1 --clock cpu` is steadier. Numbers are fp32 on a CPU and bf16 on
a GPU. Memory is the peak above the inputs (query, key, value, bias, output gradient), outputs and gradients included.

    toeplitz   this project on a CPU by torch's kernel, exact
    epsilon    the same, leaving out keys that hold at most --epsilon of any query's softmax: a proved bound
    compiled   this project on a CPU by its own kernel, exact; compiled-epsilon leaves out keys by the same bound
    megatron   Megatron-core's local attention with a dense bias added to its scores
    flex       this project on a GPU, by torch's FlexAttention; on a CPU forward only, and with --flex
    triton     this project on a GPU, by its Triton kernels
    flash      torch's flash attention on a GPU, without a bias

`-learned` after a name says that the bias, by distance, gets its gradient too.

    python -m tools.bench_attention --lengths 1024 4096 --json rows.json --png ratios.png
    python -m tools.bench_attention --long 131072
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from megatron_mep.reporting.drawing import png
from tools.bench_attention.contenders import NAMES, contenders
from tools.bench_attention.figure import ratio_curves
from tools.bench_attention.long import long_run
from tools.bench_attention.machine import machine
from tools.bench_attention.memory import in_child
from tools.bench_attention.problem import Shape
from tools.bench_attention.races import peaks_mib, planned, run
from tools.bench_attention.table import HEADER, Row, left_out_lines, line
from tools.bench_attention.timing import CLOCKS, clock_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures one very long sequence, or all that is asked for."""
    options = parse(arguments)
    here = machine(options.device, options.threads)
    print(here)
    report = long_report(options) if options.long else table_report(options, here)
    if options.json:
        settings = {"machine": here} | vars(options)
        options.json.write_text(json.dumps({"settings": settings} | report, indent=1, default=str))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--groups", type=int, help="key/value heads; default: as many as heads")
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--layout", choices=["bhsd", "sbhd"], default="bhsd", help="memory order; sbhd is Megatron's")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", default=list(NAMES), help=", ".join(NAMES))
    parser.add_argument("--flex", action="store_true", help="compile FlexAttention on a CPU, for a minute or more")
    parser.add_argument("--epsilon", type=float, default=1e-6, help="share of a softmax that may be dropped")
    parser.add_argument("--pairs", type=int, default=11, help="timed pairs of each contender, at least 2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    parser.add_argument("--png", type=Path, help="also draw the ratios there")
    parser.add_argument("--long", type=int, metavar="LENGTH", help="one forward pass of that length, and nothing else")
    options = parser.parse_args(arguments)
    options.groups = options.groups or options.heads
    wrong = list(mistakes(options))
    if wrong:
        parser.error("; ".join(wrong))
    return options


def mistakes(options: argparse.Namespace) -> Iterator[str]:
    """What options say together that cannot be done."""
    if options.heads % options.groups:
        yield f"--groups {options.groups} does not divide --heads {options.heads}"
    if options.pairs < 2:
        yield f"--pairs {options.pairs}: quartiles take at least 2"
    if not 0 < options.epsilon < 1:
        yield f"--epsilon {options.epsilon}: a share between 0 and 1"
    if options.device == "cuda" and not torch.cuda.is_available():
        yield "--device cuda: torch finds no GPU here"
    if options.device == "cuda" and options.clock == "cpu":
        yield "--clock cpu does not see what a GPU does"
    if options.long and (options.device != "cpu" or options.png):
        yield "--long is one pass on a CPU, with nothing to draw"


def shape_of(options: argparse.Namespace, length: int) -> Shape:
    """The attention of that length."""
    head_counts = options.heads, options.groups
    return Shape(options.batch, *head_counts, length, options.head_size, options.layout, options.device)


def long_report(options: argparse.Namespace) -> dict[str, object]:
    """Measures one very long sequence."""
    found = in_child(long_run, shape_of(options, options.long), options.epsilon, options.threads)
    print(found)
    return {"long": asdict(found)}


def table_report(options: argparse.Namespace, here: str) -> dict[str, object]:
    """Measures all contenders: memory first, since a child of a process with busy threads would hang."""
    chosen = [each for each in contenders(options.device, options.epsilon, options.flex) if each.name in options.only]
    races, left_out = planned([shape_of(options, length) for length in options.lengths], chosen)
    memory = [peaks_mib(each, options.threads) for each in races]
    torch.set_num_threads(options.threads)
    print(f"{conditions(options)}\n{HEADER}", flush=True)
    rows: list[Row] = []
    clock = clock_of(options.clock, options.device)
    for each, mib in zip(races, memory, strict=True):
        for row in run(each, mib, options.pairs, clock):
            print(line(row), flush=True)
            rows.append(row)
    for text in left_out_lines(left_out):
        print(text)
    if options.png:
        options.png.write_bytes(png(ratio_curves(rows, f"{here}\n{conditions(options)}")))
    return {"rows": [asdict(row) for row in rows], "left_out": [asdict(each) for each in left_out]}


def conditions(options: argparse.Namespace) -> str:
    """What was measured, in a line."""
    dtype = str(shape_of(options, 1).dtype).removeprefix("torch.")
    sizes = f"batch {options.batch}, {options.heads} heads of {options.head_size} in {options.groups} groups"
    return (
        f"{sizes}, {dtype}, {options.layout}; epsilon {options.epsilon:g}; {options.pairs} pairs by the "
        f"{options.clock} clock"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
