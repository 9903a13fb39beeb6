"""Hidden states of a layer, and what an encoding that reads them adds to its scores."""

import torch
from torch import Tensor

from megatron_mep.attention.key_bias import running_sum_of
from megatron_mep.encodings.base import Encoding, KeyBias, LayerSizes

HEADS, HIDDEN, HEAD_SIZE = 4, 12, 6
SIZES = LayerSizes(HEADS, HIDDEN, HEAD_SIZE)


def random(*sizes: int, seed: int = 0) -> Tensor:
    """Normal numbers in fp64."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def initial(encoding: Encoding) -> dict[str, Tensor]:
    """The weights of one layer as first drawn, in fp64."""
    declared = encoding.layer_weights(SIZES, torch.Generator().manual_seed(3))
    return {name: weight.value.double() for name, weight in declared.items()}


def drawn(encoding: Encoding) -> dict[str, Tensor]:
    """Weights of the same shapes, large enough that each of them matters."""
    shapes = {name: weight.shape for name, weight in initial(encoding).items()}
    return {name: random(*shape, seed=seed) / 2 for seed, (name, shape) in enumerate(shapes.items())}


def bias_of(encoding: KeyBias, hidden: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """What is added to the scores under hidden states `[S, B, hidden_size]`: `[B, H, S, S]`, zero in the future."""
    sums, gain = running_sum_of(encoding.increments(hidden, **weights)), encoding.gain(hidden, **weights)
    bias = sums[..., None, :] - sums[..., None]
    return (bias if gain is None else gain[..., None] * bias).tril()
