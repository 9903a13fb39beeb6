"""CABLE: biases that sum what the tokens between key and query say of themselves."""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from megatron_mep.encodings.base import KeyBias, LayerSizes, Weight
from megatron_mep.encodings.products import projected

INIT_STD = 0.02
"""Standard deviation of initial weights in CABLE's released code, at a width of 768."""


class Cable(KeyBias):
    """b_h(i, j) = -g_h(i) sum_{j < t <= i} f_h(t) with f_h(t) = ReLU(w_h x_t) and g_h(i) = softplus(v_h x_i).

    x is what the layer projects queries and keys from. As printed, equations 2 to 7 of the paper add +g (S_i - S_j)
    with f >= 0, which would reward distance; the sign here is the one that the paper's text (a penalty of distant
    pairs, of which ALiBi is a special case) and its released code agree on. Where ReLU gives 0, a token adds no bias
    and gets no gradient. Initial values w, v ~ N(0, 0.02^2), reconstructed from the released code, which holds no
    weighted variant. That code divides its scores by no sqrt(D); here they are, as in any other encoding.

    Source: "Context-aware Biases for Length Extrapolation", arXiv:2503.08067, eq. 2-7; the sign reconstructed from
    its text and code.
    """

    name: Literal["cable"] = "cable"
    source: ClassVar[str] = "arXiv:2503.08067, eq. 2-7 (sign reconstructed)"
    formula: ClassVar[str] = "-softplus(v_h x_i) sum_{j<t<=i} ReLU(w_h x_t)"

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """`decay` w and `strength` v, `[H, hidden_size]`."""
        return {"decay": Weight(_normal(sizes, generator)), "strength": Weight(_normal(sizes, generator))}

    def increments(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        """f of every token, `[B, H, S]`."""
        return relu(projected(hidden, weights["decay"]))

    def gain(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        """g of every token, `[B, H, S]`."""
        return softplus(projected(hidden, weights["strength"]))


class CableRelu(KeyBias):
    """b_h(i, j) = -sum_{j < t <= i} ReLU(w_h x_t): CABLE without its weight g, the paper's CABLE_NW.

    Sign, initial values and dead tokens as in `cable`.

    Source: "Context-aware Biases for Length Extrapolation", arXiv:2503.08067, eq. 2-7 with g = 1; the sign
    reconstructed from its text and code.
    """

    name: Literal["cable_nw_relu"] = "cable_nw_relu"
    source: ClassVar[str] = "arXiv:2503.08067, eq. 2-7, g = 1 (sign reconstructed)"
    formula: ClassVar[str] = "-sum_{j<t<=i} ReLU(w_h x_t)"

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """`decay` w, `[H, hidden_size]`."""
        return {"decay": Weight(_normal(sizes, generator))}

    def increments(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        """f of every token, `[B, H, S]`."""
        return relu(projected(hidden, weights["decay"]))


class CableSoftplus(KeyBias):
    """b_h(i, j) = -sum_{j < t <= i} softplus(w_h x_t + a_h): the one variant in CABLE's released code.

    Initial values w ~ N(0, 0.02^2) and a = 0, as in that code: all heads start near a slope of log 2.

    Source: "Context-aware Biases for Length Extrapolation", arXiv:2503.08067, its released code.
    """

    name: Literal["cable_nw_softplus"] = "cable_nw_softplus"
    source: ClassVar[str] = "arXiv:2503.08067, released code"
    formula: ClassVar[str] = "-sum_{j<t<=i} softplus(w_h x_t + a_h)"

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """`decay` w, `[H, hidden_size]`, and `decay_bias` a, `[H]`."""
        return {
            "decay": Weight(_normal(sizes, generator)),
            "decay_bias": Weight(torch.zeros(sizes.num_heads, dtype=torch.float32)),
        }

    def increments(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        """f of every token, `[B, H, S]`."""
        return softplus(projected(hidden, weights["decay"]) + weights["decay_bias"][:, None])


def _normal(sizes: LayerSizes, generator: torch.Generator) -> Tensor:
    return torch.randn(sizes.num_heads, sizes.hidden_size, generator=generator, dtype=torch.float32) * INIT_STD
