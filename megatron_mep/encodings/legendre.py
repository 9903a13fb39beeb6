"""Legendre polynomials, whose order is the position, added to the embeddings."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.placement import Embedded


class Legendre(Embedded, Encoding):
    """Dimension c of the C in the embedding of the token at position i takes on P_i(x_c), with x_c = -1 + 2c/C.

    P_i is the Legendre polynomial of order i. Reconstructed from a summary of the paper: that orders count from 0, so
    that the first token takes on ones. The values are small, about 0.04 in the root mean square at 768 dimensions.
    They are computed anew for every batch, in as many steps as the farthest position: a millisecond for some hundreds.

    Source: "PoPE: Legendre Orthogonal Polynomials Based Position Encoding for Large Language Models", arXiv:2405.04585
    (reconstructed). Another encoding called PoPE is polar: arXiv:2509.10534.
    """

    name: Literal["legendre"] = "legendre"
    source: ClassVar[str] = "arXiv:2405.04585 (reconstructed)"
    formula: ClassVar[str] = "add P_i(-1 + 2c/C)"

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The values `[*position.shape, hidden_size]`."""
        argument = torch.arange(hidden_size, dtype=torch.float64) * (2 / hidden_size) - 1
        return polynomials(position.long(), argument).to(position)


def polynomials(order: Tensor, argument: Tensor) -> Tensor:
    """P_n(x) of whole orders n of any shape at arguments `[X]` from -1 to 1: `[*order.shape, X]` in fp64 on the CPU.

    By P_(n+1)(x) = x P_n(x) + n/(n+1) (x P_n(x) - P_(n-1)(x)), whose many small steps a CPU takes sooner than a GPU.
    """
    wanted, place = order.cpu().unique(return_inverse=True)
    before, here, reached = torch.zeros_like(argument), torch.ones_like(argument), 0
    rows = []
    for target in wanted.tolist():
        for step in range(reached, target):
            product = argument * here
            before, here = here, product.add(product - before, alpha=step / (step + 1))
        reached = target
        rows.append(here)
    return torch.stack(rows)[place]
