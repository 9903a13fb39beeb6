"""Scores of single pairs in Python's floats, and what the code makes of the same queries and keys."""

import cmath
import math
from collections.abc import Callable

import torch
from torch import Tensor

from megatron_mep.encodings.base import Encoding, LayerSizes, PairScores
from tests.encodings.oracle import GENERATOR_SEED, fp64

HEADS, GROUPS, HEAD_SIZE, LENGTH = 4, 2, 4, 41
SIZES = LayerSizes(HEADS, HEADS * HEAD_SIZE, HEAD_SIZE)
Seen = Callable[[int, int], float | None]
"""From which distance query i sees key j <= i; `None` where it does not."""


def queries_and_keys(length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """`[1, H, S, D]` and `[1, G, S, D]` in fp64."""
    generator = torch.Generator().manual_seed(11)
    query, key = (
        torch.randn(1, heads, length, HEAD_SIZE, generator=generator, dtype=torch.float64) for heads in (HEADS, GROUPS)
    )
    return query, key


def turned_product(query: list[float], key: list[float], distance: float, base: float = 10_000.0) -> float:
    """The product after RoPE turned the key back by `distance`: complex numbers of the pairs (m, m + D / 2)."""
    half = len(query) // 2
    return math.fsum(
        (
            complex(query[m], query[m + half])
            * complex(key[m], key[m + half]).conjugate()
            * cmath.exp(1j * distance * base ** (-2 * m / len(query)))
        ).real
        for m in range(half)
    )


def product(query: list[float], key: list[float], distance: float) -> float:
    """The product that no rotation acts on."""
    return math.fsum(left * right for left, right in zip(query, key, strict=True))


def expected_scores(
    seen: Seen,
    of_pair: Callable[[list[float], list[float], float], float] = turned_product,
    bias: Callable[[int, float], float] = lambda head, distance: 0.0,  # noqa: ARG005
    factor: Callable[[int], float] = lambda query: 1.0,  # noqa: ARG005
    length: int = LENGTH,
) -> Tensor:
    """The scores `[1, H, S, S]`, of keys up to the query; -inf for all others."""
    query, key = (heads[0].tolist() for heads in queries_and_keys(length))
    scores = [[[-math.inf] * length for _ in range(length)] for _ in range(HEADS)]
    for head in range(HEADS):
        for i in range(length):
            for j in range(i + 1):
                distance = seen(i, j)
                if distance is not None:
                    turned = of_pair(query[head][i], key[head * GROUPS // HEADS][j], distance)
                    scores[head][i][j] = factor(i) * turned + bias(head, distance)
    return fp64([scores])


def scores_of(encoding: Encoding, length: int = LENGTH, first: int = 0) -> Tensor:
    """The code's scores of the queries from `first` on, keys in the future at -inf: `[1, H, S - first, S]`."""
    assert isinstance(encoding, PairScores)
    query, key = queries_and_keys(length)
    position = torch.arange(length, dtype=torch.float64)
    weights = {
        name: weight.value.double()
        for name, weight in encoding.layer_weights(SIZES, torch.Generator().manual_seed(GENERATOR_SEED)).items()
    }
    scores = encoding.at_length(length).of_pairs(query[:, :, first:], key, position[first:], position, **weights)
    return scores.masked_fill(position > position[first:, None], -math.inf)


def assert_scores(actual: Tensor, expected: Tensor) -> None:
    """Equal to what rounding in fp64 leaves, and the same pairs are excluded."""
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
