"""The ways to compute attention that are compared, and why one of them may have to stay out of a case."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatron_mep.attention.compiled import compiled_attention, serves_head_size
from megatron_mep.attention.flex import FlexAttention, flash_is_installed, flex_mistakes, kernel_for
from megatron_mep.attention.native import why_absent
from megatron_mep.attention.toeplitz import toeplitz_attention
from megatron_mep.attention.work import Work
from tools.bench_attention.megatron import MAX_POSITIONS, megatron_attention
from tools.bench_attention.problem import Case, Inputs, Shape

Attend = Callable[[], Tensor]
"""Computes the output `[B, H, S, D]`."""
Program = Callable[[], tuple[Tensor, ...]]
"""Computes the output alone, or the gradients of query, key, value and of a bias that learns."""


@dataclass(frozen=True)
class Contender(ABC):
    """One way to compute it."""

    name: str
    learned: bool = False
    """Whether the bias gets its gradient."""
    by_length: ClassVar[bool] = False
    """Whether it compiles for every length anew, and must warm up at the length that is measured."""

    def refusal(self, shape: Shape, case: Case) -> str | None:
        """Why it does not compute this case."""
        if self.learned and case == "forward":
            return "nothing learns in a forward pass, which is that of the fixed bias"
        return self.against(shape, case)

    @abstractmethod
    def against(self, shape: Shape, case: Case) -> str | None:
        """What stands against it, if anything does."""

    @abstractmethod
    def prepare(self, inputs: Inputs) -> Attend:
        """What is timed; what a training run makes once is made here."""

    def work(self, inputs: Inputs) -> Work | None:  # noqa: ARG002
        """What it computes of all pairs of a query and a key, where it drops any."""
        return None


def program(contender: Contender, inputs: Inputs, case: Case) -> Program:
    """What is measured."""
    leaves = inputs.leaves(case, contender.learned)
    attend = contender.prepare(leaves)
    if case == "forward":
        return lambda: (attend(),)
    wanted = tuple(leaves.wanting_gradients())
    return lambda: torch.autograd.grad(attend(), wanted, leaves.grad_output)


@dataclass(frozen=True)
class Unbiased(Contender):
    """Torch's scaled dot product attention without a bias, by the kernel that it chooses or by flash attention's."""

    kernel: SDPBackend | None = None

    def against(self, shape: Shape, case: Case) -> str | None:  # noqa: ARG002
        """A CPU has one kernel."""
        return "unbiased attention is torch's flash kernel on a CPU" if self.kernel and _on_cpu(shape) else None

    def prepare(self, inputs: Inputs) -> Attend:
        """The bias is not read."""
        attend = partial(
            functional.scaled_dot_product_attention,
            *inputs[:3],
            is_causal=True,
            scale=inputs.scale,
            enable_gqa=inputs.query.size(1) != inputs.key.size(1),
        )
        kernel = self.kernel
        if kernel is None:
            return attend

        def by_kernel() -> Tensor:
            with sdpa_kernel(kernel):
                return attend()

        return by_kernel


@dataclass(frozen=True)
class Toeplitz(Contender):
    """This project's attention on a CPU, by torch's kernel."""

    epsilon: float = 0.0
    """Share of a row's softmax that may be dropped."""

    def against(self, shape: Shape, case: Case) -> str | None:  # noqa: ARG002
        """Pairs of torch's kernel for a CPU."""
        return None if _on_cpu(shape) else "computes on a CPU"

    def prepare(self, inputs: Inputs) -> Attend:
        """Nothing is made once: what may be dropped depends on the queries and keys."""
        return partial(self._attention, *inputs[:4], scale=inputs.scale, epsilon=self.epsilon)

    def work(self, inputs: Inputs) -> Work | None:
        """By one more forward pass, so that none that is timed counts."""
        if not self.epsilon:
            return None
        work = Work()
        self._attention(*inputs[:4], scale=inputs.scale, epsilon=self.epsilon, work=work)
        return work

    @property
    def _attention(self) -> Callable[..., Tensor]:
        return toeplitz_attention


@dataclass(frozen=True)
class Compiled(Toeplitz):
    """The same by our own kernel."""

    def against(self, shape: Shape, case: Case) -> str | None:
        """It may not be there."""
        here = super().against(shape, case)
        if here is None and not serves_head_size(shape.head_size):
            return f"has no heads of size {shape.head_size}"
        return here or why_absent()

    @property
    def _attention(self) -> Callable[..., Tensor]:
        return compiled_attention


@dataclass(frozen=True)
class Megatron(Contender):
    """Megatron-core's local attention with a dense bias."""

    def against(self, shape: Shape, case: Case) -> str | None:  # noqa: ARG002
        """It holds all scores, and its buffer is on a GPU where there is one."""
        if shape.length > MAX_POSITIONS:
            return f"holds all scores at once, several times over: up to {MAX_POSITIONS} positions"
        if _on_cpu(shape) and torch.cuda.is_available():
            return "Megatron-core takes the GPU that is here: hide it with CUDA_VISIBLE_DEVICES="
        return None

    def prepare(self, inputs: Inputs) -> Attend:
        """The module, its mask and a fixed bias are made once."""
        return megatron_attention(*inputs[:4], scale=inputs.scale)


@dataclass(frozen=True)
class Flex(Contender):
    """This project's use of torch's FlexAttention; it keeps what it compiled."""

    attention: FlexAttention | None = None
    """None on a CPU where it was not asked for."""
    by_length: ClassVar[bool] = True

    def against(self, shape: Shape, case: Case) -> str | None:
        """What torch cannot do, and on a CPU the time that compiling takes."""
        if self.attention is None:
            return "compiles for a minute or more, with a C++ compiler: add --flex"
        mistakes = flex_mistakes(
            device_type=shape.device_type,
            gradients=case == "forward+backward",
            learned=self.learned,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return "; ".join(mistake.rule for mistake in mistakes) or None

    def prepare(self, inputs: Inputs) -> Attend:
        """The first call compiles and makes the mask of blocks."""
        assert self.attention is not None, "refused where it was not asked for"
        return partial(self.attention, *inputs[:4], scale=inputs.scale)


@dataclass(frozen=True)
class Triton(Contender):
    """This project's Triton kernels."""

    by_length: ClassVar[bool] = True

    def against(self, shape: Shape, case: Case) -> str | None:  # noqa: ARG002
        """Kernels for a GPU."""
        return "computes on a GPU" if _on_cpu(shape) else None

    def prepare(self, inputs: Inputs) -> Attend:
        """Imported late: a machine without a GPU may have no Triton."""
        from megatron_mep.attention.triton_toeplitz import triton_toeplitz_attention

        return partial(triton_toeplitz_attention, *inputs[:4], scale=inputs.scale)


NAMES = (
    *("toeplitz", "toeplitz-learned", "epsilon", "epsilon-learned"),
    *("compiled", "compiled-learned", "compiled-epsilon", "compiled-epsilon-learned", "megatron", "megatron-learned"),
    *("flex", "flex-learned", "triton", "triton-learned", "flash"),
)
"""Of all contenders, in the order of the table."""
BASELINE = Unbiased("unbiased")
"""What all are divided by."""


def contenders(device_type: str, epsilon: float, flex: bool) -> list[Contender]:
    """All of them.

    Args:
        device_type: `cpu` or `cuda`.
        epsilon: Of the rows that drop.
        flex: Whether FlexAttention may compile on a CPU.
    """
    every: list[Contender] = [Unbiased("flash", kernel=SDPBackend.FLASH_ATTENTION)]
    for learned, suffix in ((False, ""), (True, "-learned")):
        every += [
            Toeplitz(f"toeplitz{suffix}", learned),
            Toeplitz(f"epsilon{suffix}", learned, epsilon=epsilon),
            Compiled(f"compiled{suffix}", learned),
            Compiled(f"compiled-epsilon{suffix}", learned, epsilon=epsilon),
            Megatron(f"megatron{suffix}", learned),
            Flex(f"flex{suffix}", learned, attention=_flex_attention(device_type, learned, flex)),
            Triton(f"triton{suffix}", learned),
        ]
    return sorted(every, key=lambda contender: NAMES.index(contender.name))


def _flex_attention(device_type: str, learned: bool, asked: bool) -> FlexAttention | None:
    if device_type == "cpu":
        kernel = kernel_for(learned=learned, dtype=torch.float32, capability=None, flash_installed=False)
        return FlexAttention(kernel) if asked else None
    capability = torch.cuda.get_device_capability()
    return FlexAttention(
        kernel_for(learned=learned, dtype=torch.bfloat16, capability=capability, flash_installed=flash_is_installed())
    )


def _on_cpu(shape: Shape) -> bool:
    return shape.device_type == "cpu"
