"""Contextualized equivariant positional encoding, TAPE."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn import functional

from megatron_mep.encodings.base import LayerSizes, Weight
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.rotary import angles_at, geometric


class Tape(Carried):
    """RoPE whose rotations follow the text: each layer changes the numbers z that pairs of dimensions turn by.

    Pair m of a token's head has one complex number z, at first that of RoPE, exp(1j i base^(-2m/D)). It multiplies the
    pair in queries and keys. After attention with weights P and a feed-forward layer that adds x to the hidden states,

        z <- z + s P z                              s_h = sum_k mix_hk, a scale of each head
        z <- z + down (silu(gate x) * (up z))       up and down act over the heads, alike on all pairs

    `mix` and `up` start at zero, so that training starts from RoPE; `gate` and `down` start normal with `init_std`. All
    steps are linear in z with real factors that no position enters. Turning all z of a pair by one angle, as counting
    positions from elsewhere does, therefore changes no score: this is the equivariance of the title.

    Reconstructed from the public code; the paper's equations were not read. The code's choices: `mix` has a row for
    each head that is only summed, a scale with H weights, where its shape suggests a mix of heads (`attended: mixed`);
    x is the feed-forward layer's output without the residual; silu, and a width of 48 for 12 heads. The code carries
    each z twice, and starts training sequences at random positions, on which by the equivariance nothing depends.
    Ours: z is fp32 from layer to layer, only what attention averages of it is of the model's type; the last layer has
    no weights, since nothing reads its z; heads may come in groups.

    Source: "Rethinking Addressing in Language Models via Contextualized Equivariant Positional Encoding",
    arXiv:2501.00712; code VITA-Group/TAPE, models/llama/adape.py.
    """

    name: Literal["tape"] = "tape"
    source: ClassVar[str] = "arXiv:2501.00712, after its public code"
    formula: ClassVar[str] = "turn by z; z <- z + s P z; z <- z + down (silu(gate x) * (up z))"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths from which the rotations start."""
    width: PositiveInt = 48
    """Hidden values between `up` and `down`, for each pair of dimensions."""
    attended: Literal["scaled", "mixed"] = "scaled"
    """Whether `mix` scales what attention makes of each head's z, as published, or mixes it over the heads."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial `gate` and `down`."""

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """`mix [H, H]`, `up [width, H]`, `gate [width, hidden_size]` and `down [H, width]`."""

        def drawn(rows: int, columns: int) -> Weight:
            normal = torch.randn(rows, columns, generator=generator, dtype=torch.float32)
            return Weight(self.init_std * normal, per_head=False)

        def zeros(rows: int, columns: int) -> Weight:
            return Weight(torch.zeros(rows, columns, dtype=torch.float32), per_head=False)

        return {
            "mix": zeros(sizes.num_heads, sizes.num_heads),
            "up": zeros(self.width, sizes.num_heads),
            "gate": drawn(self.width, sizes.hidden_size),
            "down": drawn(sizes.num_heads, self.width),
        }

    def initial(self, position: Tensor, head_size: int) -> Tensor:
        """RoPE's cosines and sines, `[S, D]`."""
        angle = angles_at(position, geometric(self.base, head_size))
        return torch.cat((angle.cos(), angle.sin()), dim=-1)

    def updated(self, states: Tensor, attended: Tensor, output: Tensor, **weights: Tensor) -> Tensor:
        """Both steps, `[S, B, H, D]` in the type of the states."""
        mix, up, gate, down = (weights[name].to(states.dtype) for name in ("mix", "up", "gate", "down"))
        states = states + (mix.sum(1)[:, None] * attended if self.attended == "scaled" else mix @ attended)
        gates = functional.silu(output.to(states.dtype) @ gate.T)  # [S, B, width]
        # the step of a token is one H x H matrix over its heads: `width` hidden values for each pair are never held
        pairs = torch.einsum("hw,wk->whk", down, up)
        step = (gates @ pairs.flatten(1)).unflatten(-1, pairs.shape[1:])
        return states + step @ states
