"""ALiBi's geometric series of slopes, one for each head of the model, in one of two orders."""

import math
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Order = Literal["published", "balanced"]
"""Which head has which slope: as in the paper, or dealt so that tensor ranks have like work under windows."""


def alibi_slopes(num_heads: int, order: Order = "published") -> Tensor:
    """Slopes `[H]` in fp32 for all heads of the model.

    For H a power of two, m_h = 2^(-8 h / H) with h = 1..H. Otherwise the series of the largest power of two below H,
    followed by every second slope of twice that series, so that the published order of heads is not monotone.

    Source: ALiBi, arXiv:2108.12409, section 3, and the authors' code for other head counts. The balanced order is ours.
    """
    whole = 2 ** math.floor(math.log2(num_heads))
    slopes = (_series(whole) + _series(2 * whole)[::2])[:num_heads]
    return torch.tensor(slopes if order == "published" else _balanced(tuple(slopes)), dtype=torch.float32)


def _series(num_heads: int) -> list[float]:
    return [2.0 ** (-8.0 * head / num_heads) for head in range(1, num_heads + 1)]


@cache
def _balanced(slopes: tuple[float, ...]) -> tuple[float, ...]:
    """The slopes in an order whose contiguous shares are alike, for every number T of shares that divides them.

    Dealt from the flattest on, each to the free place where the squares of the work of its shares, one for each T and
    in units of the mean share, grow least. Under windows a head's work is as 1 / m where its window is shorter than the
    sequence, and that of all others where it is not: their geometric mean, m^(-1/2), makes one order serve all lengths.
    """
    num_heads = len(slopes)
    work = {size: [0.0] * size for size in range(2, num_heads) if num_heads % size == 0}
    order = [0.0] * num_heads
    free = list(range(num_heads))

    def grown(place: int) -> float:
        return sum(size**2 * shares[place * size // num_heads] for size, shares in work.items())

    for slope in sorted(slopes):
        place = min(free, key=grown)
        free.remove(place)
        order[place] = slope
        for size, shares in work.items():
            shares[place * size // num_heads] += slope**-0.5
    return tuple(order)
