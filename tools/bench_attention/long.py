"""One forward pass of attention under MEP over a very long sequence, in a process of its own."""

import time
from dataclasses import dataclass, replace

import torch

from megatron_mep.attention.compiled import compiled_attention
from megatron_mep.attention.native import why_absent
from megatron_mep.attention.toeplitz import toeplitz_attention
from megatron_mep.attention.work import Work
from tools.bench_attention.memory import forget_peak, status_kib
from tools.bench_attention.problem import Shape, inputs_of, mep_bias

WARM_UP_LENGTH = 1024


@dataclass(frozen=True)
class LongRun:
    """What one forward pass took."""

    length: int
    epsilon: float
    backend: str
    seconds: float
    """By the wall's clock, the bias by distance included."""
    kept: float
    """Share of the pairs of a query and a key it sees that were computed."""
    dropped: float
    """The proved bound of what was dropped of any row's softmax."""
    idle_gib: float
    """Memory of the process before it had any input: Python, torch and Megatron-core."""
    peak_gib: float
    """The most memory that the process had."""

    def __str__(self) -> str:
        return (
            f"{self.length} positions, forward, {self.backend}, epsilon {self.epsilon:g}: {self.seconds:.1f} s, "
            f"kept {self.kept:.4f}, dropped <= {self.dropped:.1e}, peak memory {self.peak_gib:.2f} GiB "
            f"({self.idle_gib:.2f} GiB before the inputs)"
        )


def long_run(shape: Shape, epsilon: float, num_threads: int) -> LongRun:
    """To be called in a process of its own, whose memory is measured."""
    torch.set_num_threads(num_threads)
    backend = "toeplitz" if why_absent() else "compiled"
    attention = compiled_attention if backend == "compiled" else toeplitz_attention
    warm = inputs_of(replace(shape, length=min(shape.length, WARM_UP_LENGTH)))
    attention(*warm[:4], scale=warm.scale, epsilon=epsilon)
    del warm
    forget_peak()
    idle_kib = status_kib("VmRSS")
    query, key, value, *_ = inputs_of(shape)
    work = Work()
    start = time.perf_counter()
    attention(query, key, value, mep_bias(shape), scale=shape.head_size**-0.5, epsilon=epsilon, work=work)
    seconds = time.perf_counter() - start
    idle_gib, peak_gib = (kib / 2**20 for kib in (idle_kib, status_kib("VmHWM")))
    return LongRun(shape.length, epsilon, backend, seconds, work.kept, work.dropped, idle_gib, peak_gib)
