"""What is added to the scores of a tile: biases by distance, or by both positions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from megatron_mep.attention.chunked import future_of, positions_of
from megatron_mep.attention.hankel import EXCLUDED, diagonal_sums, first_entry, mask_of, mask_vector
from megatron_mep.attention.tiles import Tile


class TileBiases(ABC):
    """The biases of all heads at each pair of a query and a key; keys in the future are excluded."""

    @abstractmethod
    def of(self, tile: Tile) -> Tensor:
        """`[H, rows, keys]`, rows from the last to the first."""

    @abstractmethod
    def add_gradient(self, tile: Tile, grad_scores: Tensor) -> None:
        """Add what the gradient of a tile's scores, `[B, H, rows, keys]`, comes to in the weights."""

    @abstractmethod
    def gradients(self) -> Sequence[Tensor]:
        """What was added up, for each of the weights."""


class DistanceBiases(TileBiases):
    """Biases by distance `[H, N >= S]`, as the vectors of `hankel`; tiles have up to `num_rows` rows."""

    def __init__(self, bias: Tensor, num_keys: int, num_rows: int, dtype: torch.dtype) -> None:
        self._like, self._num_keys = bias, num_keys
        self._vector = mask_vector(bias, num_keys, num_rows, dtype)
        self._gradient: Tensor | None = None

    def of(self, tile: Tile) -> Tensor:
        """`[H, rows, keys]`, a view."""
        return mask_of(tile, self._vector, self._num_keys)[0]

    def add_gradient(self, tile: Tile, grad_scores: Tensor) -> None:
        """Add the sums along diagonals."""
        if self._gradient is None:
            self._gradient = torch.zeros_like(self._vector)
        sums = diagonal_sums(grad_scores.sum(0), tile.on_diagonal)
        first = first_entry(tile, self._num_keys)
        self._gradient[:, first : first + sums.size(-1)] += sums

    def gradients(self) -> Sequence[Tensor]:
        """That of the biases, `[H, N]`."""
        whole = torch.zeros_like(self._like)
        if self._gradient is not None:
            whole[:, : self._num_keys] = self._gradient[:, : self._num_keys].flip(1)
        return [whole]


class PositionBiases(TileBiases):
    """Biases that a function gives `[H, rows, keys]` of the positions `[rows]` and `[keys]` and of some weights."""

    def __init__(self, bias_of: Callable[..., Tensor], weights: dict[str, Tensor], dtype: torch.dtype) -> None:
        self._bias_of, self._dtype = bias_of, dtype
        self._weights = {name: weight.detach() for name, weight in weights.items()}
        self._gradients = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}

    def of(self, tile: Tile) -> Tensor:
        """`[H, rows, keys]`, computed anew."""
        bias = self._computed(tile, self._weights)
        return bias.masked_fill_(future_of(tile, bias.device).flip(0), EXCLUDED) if tile.on_diagonal else bias

    def add_gradient(self, tile: Tile, grad_scores: Tensor) -> None:
        """Add what reaches the weights; scores of keys in the future must have none."""
        with torch.enable_grad():
            leaves = {name: weight.clone().requires_grad_() for name, weight in self._weights.items()}
            bias = self._computed(tile, leaves)
        found = torch.autograd.grad(bias, list(leaves.values()), grad_scores.sum(0), allow_unused=True)
        for sum_so_far, part in zip(self._gradients.values(), found, strict=True):
            if part is not None:
                sum_so_far.add_(part)

    def gradients(self) -> Sequence[Tensor]:
        """Those of the weights, in their order."""
        return list(self._gradients.values())

    def _computed(self, tile: Tile, weights: dict[str, Tensor]) -> Tensor:
        device = next(iter(weights.values())).device
        query_position, key_position = positions_of(tile, self._dtype, device)
        return self._bias_of(query_position.flip(0), key_position, **weights)
