"""The backends of biases by distance on a CPU: our own kernel where it can be had, torch's otherwise."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from megatron_mep.attention.backend import Attend, OfDistance, Request
from megatron_mep.attention.compiled import MOST_HEAD_SIZE, compiled_attention, serves_head_size
from megatron_mep.attention.native import why_absent
from megatron_mep.attention.step import step_attention
from megatron_mep.attention.toeplitz import toeplitz_attention
from megatron_mep.config.errors import Mistake


class OnCpu(OfDistance):
    """One whose windows follow the queries and keys."""

    computes_on = "cpu"

    def step(self, request: Request) -> Attend:  # noqa: D102
        return partial(step_attention, epsilon=request.epsilon)


class Compiled(OnCpu):
    """Our own kernel, compiled on the machine that runs it."""

    name = "compiled"

    def mistakes(self, request: Request) -> list[Mistake]:  # noqa: D102
        mistakes = super().mistakes(request)
        if request.dtype.itemsize > torch.float32.itemsize:
            rule = f"compiled computes in fp32, not in {str(request.dtype).removeprefix('torch.')}"
            mistakes.append(request.against(rule, "set it to toeplitz"))
        if not serves_head_size(request.head_size):
            rule = f"compiled computes heads of a multiple of 8 up to {MOST_HEAD_SIZE}, not of {request.head_size}"
            mistakes.append(request.against(rule, "set it to toeplitz"))
        # what is refused anyway is not compiled first
        absent = None if mistakes else why_absent()
        if absent:
            remedy = "name a C++ compiler in CXX and a place to keep it in XDG_CACHE_HOME, or set it to toeplitz"
            mistakes.append(request.against(f"compiled has no kernel here: {absent}", remedy))
        return mistakes

    def reason(self, request: Request) -> str:  # noqa: D102
        precision = "" if request.dtype == torch.float32 else ", computed in fp32"
        return self.told(request, "on a CPU by our own kernel, compiled here") + precision

    def attend(self, request: Request) -> Attend:  # noqa: D102
        return partial(_compiled_or_wider, epsilon=request.epsilon)


class Toeplitz(OnCpu):
    """Torch's flash kernel tile by tile."""

    name = "toeplitz"

    def reason(self, request: Request) -> str:  # noqa: D102
        precision = "" if request.dtype.itemsize >= torch.float32.itemsize else ", backward pass in fp32"
        instead = [mistake.rule for mistake in Compiled().mistakes(request)] if request.backend == "auto" else []
        return "; ".join([self.told(request, "on a CPU by torch's kernel") + precision, *instead])

    def attend(self, request: Request) -> Attend:  # noqa: D102
        return partial(toeplitz_attention, epsilon=request.epsilon)


def _compiled_or_wider(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, **options: Any) -> Tensor:
    """By our kernel, or in fp64 by torch's: a model may be cast after its backend was chosen."""
    attend = toeplitz_attention if query.dtype == torch.float64 else compiled_attention
    return attend(query, key, value, bias, **options)
