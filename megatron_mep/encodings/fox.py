"""The bias of the Forgetting Transformer, a forget gate at every token."""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from megatron_mep.encodings.base import KeyBias, LayerSizes, Weight
from megatron_mep.encodings.products import projected

INIT_STD = 0.02
"""Standard deviation of initial weights in the authors' code."""


class Fox(KeyBias):
    """b_h(i, j) = sum_{j < t <= i} log sigmoid(w_h x_t + a_h), the logarithm of the product of forget gates.

    x is what the layer projects queries and keys from. Also known as data-dependent ALiBi: a gate that is constant
    gives ALiBi's bias with the slope -log sigmoid(a_h). Initial values as in the authors' code: w ~ N(0, 0.02^2) and
    a = 0, where half of what came before is forgotten at every token. The library x-transformers starts at a = 5, with
    nearly open gates. The authors' output gate, norms and shifts are not part of it.

    Source: "Forgetting Transformer: Softmax Attention with a Forget Gate", arXiv:2503.02130, and the
    authors' code.
    """

    name: Literal["fox"] = "fox"
    source: ClassVar[str] = "arXiv:2503.02130 and the authors' code"
    formula: ClassVar[str] = "sum_{j<t<=i} log sigmoid(w_h x_t + a_h)"

    initial_bias: float = 0.0
    """Initial value of a: gates start near sigmoid of it."""

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """`gate` w, `[H, hidden_size]`, and `gate_bias` a, `[H]`."""
        gate = torch.randn(sizes.num_heads, sizes.hidden_size, generator=generator, dtype=torch.float32) * INIT_STD
        gate_bias = torch.full((sizes.num_heads,), self.initial_bias, dtype=torch.float32)
        return {"gate": Weight(gate), "gate_bias": Weight(gate_bias)}

    def increments(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        """-log of every token's gate, `[B, H, S]`."""
        return softplus(-(projected(hidden, weights["gate"]) + weights["gate_bias"][:, None]))
