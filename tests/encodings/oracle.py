"""Causal attention of one head in plain fp64 loops, and the constants of an encoding."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias

GENERATOR_SEED = 7


def fp64(numbers: Any) -> Tensor:
    """Python's floats, nested as they are, without loss."""
    return torch.tensor(numbers, dtype=torch.float64)


def weights_of(encoding: DistanceBias, num_heads: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The initial weights of an encoding, by name."""
    declared = encoding.weights(num_heads, torch.Generator().manual_seed(GENERATOR_SEED))
    return {name: weight.value.to(dtype) for name, weight in declared.items()}


def bias_of(encoding: DistanceBias, distance: Tensor, num_heads: int) -> Tensor:
    """The bias `[H, *distance.shape]` at an encoding's initial weights."""
    return encoding.of_distance(distance, **weights_of(encoding, num_heads))


def scores(seed: int, length: int) -> list[list[float]]:
    """Scaled scores of one head, not yet masked."""
    return torch.randn(length, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


def values(seed: int, length: int) -> list[float]:
    """One dimension of the values."""
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


def attend(score: list[list[float]], value: list[float], factor: Sequence[float]) -> tuple[list[float], list[float]]:
    """Each query's output and log-sum-exp, its un-normalised weights multiplied by the factor of each distance."""
    outputs, sums = [], []
    for query, row in enumerate(score):
        mass = [math.exp(row[key]) * factor[query - key] for key in range(query + 1)]
        total = math.fsum(mass)
        outputs.append(math.fsum(part * one for part, one in zip(mass, value, strict=False)) / total)
        sums.append(math.log(total))
    return outputs, sums
