"""A model of which all is known: its output is a linear functional of a window, and it attends alike to all tokens."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from megatron_mep.analysis.lengths import Observe
from megatron_mep.attention.scoring import Scoring
from megatron_mep.encodings.nope import Nope

NUM_HEADS, HEAD_SIZE, WIDTH = 4, 8, 6
"""H, D, and the size of an embedding."""
STREAM = np.random.default_rng(5).integers(0, 50, 400)


def windowed(weights: Tensor) -> Observe:
    """Its output is the sum of `weights[d]` times all numbers of the embedding at distance d, and of no other token.

    The queries of its two layers are zero: each attends alike to itself and all keys before it.
    """

    def observe(tokens: Tensor, hear: Callable[[int, Scoring], None]) -> Tensor:
        num_samples, length = tokens.size(0), tokens.size(1) - 1
        embedded = torch.randn(num_samples, length, WIDTH, dtype=torch.float64, requires_grad=True)
        newest = embedded.flip(1)[:, : len(weights)]
        (newest * weights[: newest.size(1), None]).sum().backward()
        for index in range(2):
            hear(index, uniform(num_samples, length))
        return torch.linalg.vector_norm(embedded.grad, dim=-1)

    return observe


def uniform(num_samples: int, length: int) -> Scoring:
    """Queries of zero, and keys of half as many heads."""
    query = torch.zeros(num_samples, NUM_HEADS, length, HEAD_SIZE)
    key = torch.randn(num_samples, NUM_HEADS // 2, length, HEAD_SIZE)
    return Scoring(Nope(), query, key, None, HEAD_SIZE**-0.5)


def uniform_mass(length: int) -> list[float]:
    """The mean over queries 0 ... `length` - 1 of what each gives to each distance: 1 / (i + 1) to all up to i."""
    return [sum(1 / (query + 1) for query in range(distance, length)) / length for distance in range(length)]
