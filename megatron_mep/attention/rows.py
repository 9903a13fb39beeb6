"""The backends: for each, what it serves and what it says at start-up."""

import importlib.util
from functools import partial

import torch
from torch import Tensor

from megatron_mep.attention.backend import Attend, OfDistance, Request, Row, no_dropout
from megatron_mep.attention.cpu_rows import Compiled, Toeplitz
from megatron_mep.attention.flex import FlexAttention, Kernel, flash_is_installed, flex_mistakes, kernel_for
from megatron_mep.attention.key_bias import key_bias_attention
from megatron_mep.attention.pair_scores import pair_scores_attention
from megatron_mep.attention.plain import plain_attention
from megatron_mep.attention.position_bias import position_bias_attention
from megatron_mep.attention.reference import MAX_DENSE_POSITIONS, dense_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.attention.static import StaticWindows
from megatron_mep.attention.triton_kernels.blocks import HEAD_SIZES
from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, PairScores, PositionBias, ScoreMix


class Plain(Row):
    """Torch's scaled dot product attention."""

    name = "plain"

    def knows(self, encoding: Encoding) -> bool:  # noqa: D102
        return not isinstance(encoding, DistanceBias | PositionBias | KeyBias | ScoreMix | PairScores)

    def mistakes(self, request: Request) -> list[Mistake]:  # noqa: ARG002, D102
        return []

    def reason(self, request: Request) -> str:  # noqa: D102
        why = f"{request.encoding.name} adds nothing to the scores: torch's scaled dot product attention"
        if request.dropout and request.device_type == "cpu":
            return f"{why}; for dropout torch holds all scores on a CPU"
        return why

    def attend(self, request: Request) -> Attend:  # noqa: D102
        return partial(plain_attention, dropout=request.dropout)


class OnGpu(OfDistance):
    """One with static windows."""

    computes_on = "cuda"

    def takes_bound(self, request: Request) -> bool:  # noqa: D102
        return request.epsilon > 0


class Triton(OnGpu):
    """Our own kernels."""

    name = "triton"

    def rank(self, request: Request) -> int:  # noqa: D102
        return 0 if request.encoding.learned else 1

    def mistakes(self, request: Request) -> list[Mistake]:  # noqa: D102
        mistakes = super().mistakes(request)
        if not package_is_there("triton"):
            mistakes.append(request.against("triton needs the package of that name", "pip install 'megatron-mep[gpu]'"))
        if request.head_size not in HEAD_SIZES:
            sizes = ", ".join(map(str, HEAD_SIZES))
            rule = f"triton computes heads of size {sizes}, not {request.head_size}"
            mistakes.append(request.against(rule, "set it to flex"))
        return mistakes

    def reason(self, request: Request) -> str:  # noqa: D102
        return self.told(request, "on a GPU, by kernels that no GPU has run yet")

    def attend(self, request: Request) -> Attend:  # noqa: D102
        # Triton is there on machines with a GPU alone
        from megatron_mep.attention.triton_toeplitz import triton_toeplitz_attention

        return StaticWindows(triton_toeplitz_attention, request.epsilon, on_host=False)


class Flex(OnGpu):
    """Torch's FlexAttention."""

    name = "flex"

    def rank(self, request: Request) -> int:  # noqa: D102
        # a bias that learns gets its gradient by atomic additions there
        return 1 if request.encoding.learned else 0

    def mistakes(self, request: Request) -> list[Mistake]:  # noqa: D102
        mistakes = super().mistakes(request)
        mistakes += flex_mistakes(
            device_type=request.device_type,
            gradients=request.training,
            learned=request.encoding.learned,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        if request.head_size < 16:
            rule = f"flex computes heads of size 16 and more, not {request.head_size}"
            mistakes.append(request.against(rule, "set it to reference, or choose fewer heads"))
        return mistakes

    def reason(self, request: Request) -> str:  # noqa: D102
        order = ", its gradient added up in no fixed order" if request.encoding.learned and request.training else ""
        how = f"on a GPU, by FlexAttention, not run on one yet, {_kernel(request).reason}"
        return self.told(request, how) + order

    def attend(self, request: Request) -> Attend:  # noqa: D102
        return StaticWindows(FlexAttention(_kernel(request)), request.epsilon, on_host=True)


class Chunked(Row):
    """A chunk of queries at a time, its scores written out."""

    name = "chunked"

    def knows(self, encoding: Encoding) -> bool:  # noqa: D102
        return isinstance(encoding, PositionBias | KeyBias | ScoreMix | PairScores)

    def mistakes(self, request: Request) -> list[Mistake]:  # noqa: D102
        return no_dropout(request)

    def reason(self, request: Request) -> str:  # noqa: D102
        precision = "" if request.dtype.itemsize >= torch.float32.itemsize else ", computed in fp32"
        acts = f"{request.encoding.name} acts on each pair of a query and a key"
        return f"{acts}: exact, a chunk of queries at a time, memory linear in the length{precision}"

    def attend(self, request: Request) -> Attend:  # noqa: D102
        match request.encoding:
            case KeyBias():
                return attend_with_sums
            case PositionBias():
                return position_bias_attention
            case PairScores():
                return pair_scores_attention
        return score_mix_attention


def package_is_there(name: str) -> bool:
    """Whether a package can be imported; it is not."""
    return importlib.util.find_spec(name) is not None


def attend_with_sums(
    query: Tensor, key: Tensor, value: Tensor, sums_and_gain: tuple[Tensor, Tensor | None], *, scale: float
) -> Tensor:
    """`key_bias_attention`, its running sum and gain as one argument."""
    return key_bias_attention(query, key, value, *sums_and_gain, scale=scale)


class Reference(Row):
    """The dense specification."""

    name = "reference"
    automatic = False

    def knows(self, encoding: Encoding) -> bool:  # noqa: ARG002, D102
        return True

    def mistakes(self, request: Request) -> list[Mistake]:  # noqa: D102
        mistakes = no_dropout(request)
        if isinstance(request.encoding, PositionBias | KeyBias | ScoreMix | PairScores):
            rule = f"must be auto under {request.encoding.name}: reference attention serves biases by distance alone"
            mistakes.append(request.against(rule, "set it to auto"))
        if request.epsilon:
            rule = "must be 0 with the dense reference, which drops nothing"
            remedy = "set it to 0, or model.attention_backend to auto"
            mistakes.append(Mistake("model.attention_epsilon", request.epsilon, rule, remedy))
        return mistakes

    def reason(self, request: Request) -> str:  # noqa: ARG002, D102
        return f"asked for: dense, memory quadratic in the length, up to {MAX_DENSE_POSITIONS} positions"

    def attend(self, request: Request) -> Attend:  # noqa: ARG002, D102
        return dense_attention


def _kernel(request: Request) -> Kernel:
    """FlexAttention's kernel on the present device."""
    return kernel_for(
        learned=request.encoding.learned,
        dtype=request.dtype,
        capability=torch.cuda.get_device_capability() if torch.cuda.is_available() else None,
        flash_installed=flash_is_installed(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


ROWS: tuple[Row, ...] = (Plain(), Compiled(), Toeplitz(), Triton(), Flex(), Chunked(), Reference())
"""In order of preference, where ranks are equal."""
