"""How far back a bias by distance lets attention reach before any training."""

import torch
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias


def receptive_field(
    encoding: DistanceBias, weights: dict[str, Tensor], num_distances: int, epsilon: float = 0.01
) -> Tensor:
    """The distance within which all but a share of a head's kernel exp(b_h(d)) lies: `[H]` int64.

    The smallest j such that sum_{d <= j} exp(b_h(d)) > (1 - epsilon) sum_d exp(b_h(d)), d = 0 .. num_distances - 1.
    Where the sum over all distances converges it hardly depends on their number, if that is large.

    Source: the theoretical receptive field of "Exploring Transformer Extrapolation", arXiv:2307.10156; the exact
    definition is reconstructed.

    Args:
        encoding: The bias.
        weights: Its weights, as `of_distance` takes them.
        num_distances: Those that are looked at; at least as many as the longest sequence of interest.
        epsilon: The share that may lie beyond.
    """
    assert 0 < epsilon < 1, f"a share of {epsilon}"
    device = next((weight.device for weight in weights.values()), None)
    bias = encoding.of_distance(torch.arange(num_distances, dtype=torch.float64, device=device), **weights)
    return (bias.softmax(dim=-1).cumsum(dim=-1) <= 1 - epsilon).sum(dim=-1)
