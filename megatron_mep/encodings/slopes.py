"""ALiBi's geometric series of slopes, one for each head of the model."""

import math

import torch
from torch import Tensor


def alibi_slopes(num_heads: int) -> Tensor:
    """Slopes `[H]` in fp32 for all heads of the model, in the published order.

    For H a power of two, m_h = 2^(-8 h / H) with h = 1..H. Otherwise the series of the largest power of two below H,
    followed by every second slope of twice that series, so that the order of heads is not monotone.

    Source: ALiBi, arXiv:2108.12409, section 3, and the authors' code for other head counts.
    """
    whole = 2 ** math.floor(math.log2(num_heads))
    return torch.tensor((_series(whole) + _series(2 * whole)[::2])[:num_heads], dtype=torch.float32)


def _series(num_heads: int) -> list[float]:
    return [2.0 ** (-8.0 * head / num_heads) for head in range(1, num_heads + 1)]
