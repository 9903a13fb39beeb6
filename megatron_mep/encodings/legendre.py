"""Legendre polynomials, whose order is the position, added to the embeddings."""

from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.placement import Embedded


class Legendre(Embedded, Encoding):
    """Dimension c of the C in the embedding of the token at position i takes on P_i(x_c), with x_c = -1 + 2c/C.

    P_i is the Legendre polynomial of order i. Reconstructed from a summary of the paper: that orders count from 0, so
    that the first token takes on ones. The values fall with the position; of the first thousand, at 768 dimensions, the
    root mean square is 0.07.

    Source: "PoPE: Legendre Orthogonal Polynomials Based Position Encoding for Large Language Models", arXiv:2405.04585
    (reconstructed). Another encoding called PoPE is polar: arXiv:2509.10534.
    """

    name: Literal["legendre"] = "legendre"
    source: ClassVar[str] = "arXiv:2405.04585 (reconstructed)"
    formula: ClassVar[str] = "add P_i(-1 + 2c/C)"

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The values `[*position.shape, hidden_size]`."""
        order = position.long().cpu()
        return _table(_rounded_up(int(order.max()) + 1), hidden_size)[order].to(position)


def polynomials(num_orders: int, argument: Tensor) -> Tensor:
    """P_n(x) of the first orders n at arguments `[X]` from -1 to 1: `[num_orders, X]` in their type.

    By P_(n+1)(x) = x P_n(x) + n/(n+1) (x P_n(x) - P_(n-1)(x)).
    """
    values = argument.new_empty(num_orders, len(argument))
    before, here = torch.zeros_like(argument), torch.ones_like(argument)
    for order in range(num_orders):
        values[order] = here
        product = argument * here
        before, here = here, product.add(product - before, alpha=order / (order + 1))
    return values


# as many small steps as positions, for every batch the same
@lru_cache(maxsize=1)
def _table(num_orders: int, num_arguments: int) -> Tensor:
    """P_n(-1 + 2c/C) of the first orders, `[num_orders, num_arguments]` in fp64 on the CPU."""
    return polynomials(num_orders, torch.arange(num_arguments, dtype=torch.float64) * (2 / num_arguments) - 1)


def _rounded_up(number: int) -> int:
    """The next power of two, so that a sequence that grows needs few tables."""
    return 1 << (number - 1).bit_length()
