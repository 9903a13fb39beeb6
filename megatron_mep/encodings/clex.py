"""CLEX: a rotation whose frequencies follow a learned differential equation over the length."""

import math
from collections.abc import Callable
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn.functional import silu

from megatron_mep.encodings.base import LayerSizes, Rotation, Sharable, Weight
from megatron_mep.encodings.placement import Placed
from megatron_mep.encodings.rotary import angles_at, geometric
from megatron_mep.encodings.rotate import rotate


class Clex(Placed, Rotation, Sharable):
    """Pair m turns by i f_m(t), t = ceil(N / L) for N tokens and training length L; f_m(1) is RoPE's base^(-2m/D).

    log f = log n + g: n_m(t) = base^(-2m/D) (2t - 1)^(-2m/(D - 2)) is the series of NTK-aware scaling, and g follows
    dg/dt = act((log f + log n) U) W from g(1) = 0. At first U `[D/2, width D]` is uniform within 1 / sqrt(width D) and
    W `[width D, D/2]` zero: scaling begins as NTK-aware. All as in the authors' code, but that it integrates log f by
    steps of 0.01 in t; here g is, by Runge and Kutta's method in log(2t - 1), of which log n is a linear function.

    In training t is drawn for each batch from 1 .. `max_factor`, and the tokens stand at sorted positions drawn without
    replacement from 0 .. tL - 1, of which the first and the last are always taken. In evaluation they stand in order,
    and t stays at `max_factor` from there on. A cached decoding passes from one t to the next while it reads, and then
    differs from a forward pass over the whole, as the authors' does.

    Source: "CLEX: Continuous Length Extrapolation for Large Language Models", arXiv:2310.16450, section 3, and the
    authors' code, which has the integers for t.
    """

    name: Literal["clex"] = "clex"
    source: ClassVar[str] = "arXiv:2310.16450, section 3"
    formula: ClassVar[str] = "turn pair m by i f_m(ceil(N/L)), d log f / dt learned"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths at the training length."""
    max_factor: PositiveInt = 16
    """The largest t, how many times the training length is trained for."""
    width: PositiveInt = 1
    """Hidden size of the network, in heads' sizes."""
    activation: Literal["silu", "tanh"] = "silu"
    """The network's activation: the paper's, or the default of the authors' training script."""
    num_steps: PositiveInt = 16
    """Steps of the integration; the network is asked four times in each."""
    train_length: PositiveInt | None = None
    """The length L at which t is 1; the training length where absent."""
    shared_by_layers: bool = True
    """Whether all layers have the same network, as in the authors' code; otherwise each has its own."""

    def resolved(self, train_length: int) -> Self:
        """Itself, with the training length filled in unless it is stated."""
        return self.model_copy(update={"train_length": self.train_length or train_length})

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """The network, `up [D/2, width D]` and `down [width D, D/2]`, for all heads."""
        pairs, hidden = sizes.head_size // 2, self.width * sizes.head_size
        up = (2 * torch.rand(pairs, hidden, generator=generator, dtype=torch.float32) - 1) / math.sqrt(hidden)
        return {"up": Weight(up, per_head=False), "down": Weight(torch.zeros(hidden, pairs), per_head=False)}

    def places(self, tokens: Tensor, training: bool) -> Tensor:
        """Where tokens stand, `[1, B, S]`."""
        assert self.train_length is not None, "the training length fills it in"
        length = tokens.size(-1)
        place = torch.arange(length)
        if training:
            # drawn on the CPU, so that every device is given the same
            factor = int(torch.randint(1, self.max_factor + 1, ()))
            stop = max(factor * self.train_length, length)
            between = torch.randperm(max(stop - 2, 0))[: max(length - 2, 0)].sort().values + 1
            place = torch.cat((torch.tensor([0]), between, torch.tensor([stop - 1])))[:length]
        return place.to(tokens.device).expand(1, *tokens.shape)

    def frequencies(self, factor: Tensor, head_size: int, **weights: Tensor) -> Tensor:
        """f_m at a scaling factor t `[]` in fp64: radians from one position to the next, `[head_size // 2]` in fp64."""
        up, down = weights["up"].double(), weights["down"].double()
        act = silu if self.activation == "silu" else torch.tanh
        start = geometric(self.base, head_size).log().to(up.device)
        fall = torch.arange(len(start), dtype=start.dtype, device=up.device) * (2 / max(head_size - 2, 1))

        def change(time: Tensor, learned: Tensor) -> Tensor:
            """dg / dtime, of time = log(2t - 1): 2 dt = e^time dtime, and log n = start - fall time."""
            return act((2 * (start - fall * time) + learned) @ up) @ down * (time.exp() / 2)

        end = torch.log(2 * factor - 1)
        return (start - fall * end + integrated(change, torch.zeros_like(start), end, self.num_steps)).exp()

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:
        """The angles `[*position.shape, head_size // 2]` in radians, of positions the last of which says the length."""
        assert self.train_length is not None, "the training length fills it in"
        # in training, too, the last place is t L - 1
        factor = ((position.max().double() + 1) / self.train_length).ceil().clamp(1, self.max_factor)
        return angles_at(position, self.frequencies(factor, head_size, **weights))

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        """Queries or keys `[S, B, H, D]`, turned at their places."""
        return rotate(heads, self.angles(position[0], heads.size(-1), **weights))


def integrated(change: Callable[[Tensor, Tensor], Tensor], value: Tensor, end: Tensor, num_steps: int) -> Tensor:
    """The value at time `end`, which it had at time 0 and which changes by `change(time, value)`.

    By the classical method of Runge and Kutta of fourth order.
    """
    step = end / num_steps
    for number in range(num_steps):
        time = number * step
        first = change(time, value)
        second = change(time + step / 2, value + step / 2 * first)
        third = change(time + step / 2, value + step / 2 * second)
        fourth = change(time + step, value + step * third)
        value = value + step / 6 * (first + 2 * second + 2 * third + fourth)
    return value
