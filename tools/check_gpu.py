"""Checks attention with a bias by distance on a CUDA device against fp64, then times it against no bias at all.

First the Triton kernels, output and every gradient; an error of more than twice that of plain PyTorch in the same type
is a failure. Then TFLOP/s of torch's flash attention without a bias, of FlexAttention and of the Triton kernels, with a
bias that is fixed and one that learns. All count the products of the unbiased pass, so that columns compare.
The exit code is 1 after a failure, and 2 where there is no device.

    python -m tools.check_gpu --lengths 2048 8192 32768 --head-sizes 64 128
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.flex import FlexAttention, flash_is_installed, kernel_for
from megatron_mep.attention.reference import dense_bias, reference_attention
from megatron_mep.config.errors import UserError

Attend = Callable[..., Tensor]
NAMES = ("output", "grad query", "grad key", "grad value", "grad bias")


class Shape(NamedTuple):
    """Of one attention."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    head_size: int


CHECKED = (Shape(2, 4, 2, 300, 333, 64), Shape(1, 4, 4, 1000, 1000, 128), Shape(2, 4, 1, 77, 77, 32))


def main() -> None:
    """Checks, then times."""
    options = parse()
    if not torch.cuda.is_available():
        print("needs a CUDA device, and torch finds none here", file=sys.stderr)
        raise SystemExit(2)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    failures = sum(
        failures_of(shape, dtype, windowed)
        for shape in CHECKED
        for dtype in (torch.float32, torch.bfloat16)
        for windowed in (False, True)
    )
    if not options.no_timing:
        for head_size in options.head_sizes:
            for length in options.lengths:
                time_all(
                    Shape(max(1, options.tokens // length), options.heads, options.heads, length, length, head_size)
                )
    raise SystemExit(failures > 0)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--head-sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384, help="of a batch, if a sequence is not longer")
    parser.add_argument("--no-timing", action="store_true", help="only the comparison with fp64")
    return parser.parse_args()


def inputs_of(shape: Shape, dtype: torch.dtype, learned: bool = True) -> list[Tensor]:
    """Query, key, value and bias, leaves of a graph; then the gradient of the output."""
    generator = torch.Generator("cuda").manual_seed(0)
    normal = partial(torch.randn, generator=generator, device="cuda")
    batch, heads, groups, queries, keys, size = shape
    slope = 2.0 ** -torch.linspace(1, 8, heads, device="cuda")
    bias = normal(heads, keys) - slope[:, None] * torch.arange(keys, device="cuda")
    sizes = (batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, size)
    leaves = [normal(*each).to(dtype).requires_grad_() for each in sizes]
    return [*leaves, bias.requires_grad_(learned), normal(*sizes[0]).to(dtype)]


def results(attend: Attend, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients."""
    *leaves, grad_output = inputs
    output = attend(*leaves, scale=leaves[0].size(3) ** -0.5)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad_output)]


def failures_of(shape: Shape, dtype: torch.dtype, windowed: bool) -> int:
    """Compares with fp64, prints a line of errors relative to the largest number, and counts those over the budget."""
    inputs = inputs_of(shape, dtype)
    windows = torch.tensor([1 << shift for shift in range(4, 4 + shape.heads)], device="cuda") if windowed else None

    def dense(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
        if windows is not None:
            dropped = torch.arange(bias.size(1), device="cuda") >= windows[:, None]
            bias = bias.masked_fill(dropped, -torch.inf)
        return reference_attention(query, key, value, dense_bias(bias, query.size(2), key.size(2)), scale=scale)

    attend = partial(triton_attention(), windows=windows)
    actual, again, plain = results(attend, inputs), results(attend, inputs), results(dense, inputs)
    exact = results(dense, [tensor.detach().double().requires_grad_() for tensor in inputs])
    failures, report = 0, []
    for name, one, other, rough, true in zip(NAMES, actual, again, plain, exact, strict=True):
        largest = true.abs().max()
        error, rough_error = ((each.double() - true).abs().max() / largest for each in (one, rough))
        wrong = not bool(error <= 2 * (rough_error + torch.finfo(dtype).eps))
        varies = not torch.equal(one, other)
        failures += wrong or varies
        report.append(f"{name} {error:.1e} ({rough_error:.1e}){' WRONG' * wrong}{' VARIES' * varies}")
    print(f"{tuple(shape)} {dtype} windows {windowed}: " + ", ".join(report), flush=True)
    return failures


def triton_attention() -> Attend:
    """Imported late, so that a machine without Triton gets as far as the message that it needs a device."""
    from megatron_mep.attention.triton_toeplitz import triton_toeplitz_attention

    return triton_toeplitz_attention


def time_all(shape: Shape) -> None:
    """Prints TFLOP/s of every backend at one shape in bf16, forward and forward with backward."""
    capability = torch.cuda.get_device_capability()

    def unbiased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:  # noqa: ARG001
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)

    def flex(learned: bool) -> Attend:
        installed = flash_is_installed()
        return FlexAttention(
            kernel_for(learned=learned, dtype=torch.bfloat16, capability=capability, flash_installed=installed)
        )

    print(f"\n{tuple(shape)} bf16, TFLOP/s: forward, forward and backward", flush=True)
    time_one("no bias", unbiased, shape, learned=False)
    for learned in (False, True):
        kind = "learned bias" if learned else "fixed bias"
        time_one(f"flex, {kind}", flex(learned), shape, learned)
        time_one(f"triton, {kind}", triton_attention(), shape, learned)


def time_one(name: str, attend: Attend, shape: Shape, learned: bool) -> None:
    """Prints one line, or why there is none: one backend that fails must not hide the others."""
    from triton.testing import do_bench

    *leaves, grad_output = inputs_of(shape, torch.bfloat16, learned)
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    scale = shape.head_size**-0.5
    # two products of S (S + 1) / 2 pairs forward; five more backward
    flops = 4 * shape.batch * shape.heads * shape.head_size * shape.keys * (shape.keys + 1) / 2

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*leaves, scale=scale)

    def both() -> tuple[Tensor, ...]:
        output = attend(*leaves, scale=scale)
        used = trained if name != "no bias" else trained[:3]
        return torch.autograd.grad(output, used, grad_output)

    try:
        forward_ms, both_ms = (do_bench(run, warmup=50, rep=200, return_mode="median") for run in (forward, both))
    except (RuntimeError, UserError) as error:
        print(f"{name:<22} failed: {str(error).splitlines()[0]}", flush=True)
        return
    print(f"{name:<22} {flops / forward_ms / 1e9:7.0f} {3.5 * flops / both_ms / 1e9:7.0f}", flush=True)


if __name__ == "__main__":
    main()
