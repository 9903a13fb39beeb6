"""How much of its attention each head gives to each distance."""

import torch
from torch import Tensor

from megatron_mep.attention.hankel import diagonal_sums
from megatron_mep.attention.scoring import Scoring


class AttentionMass:
    """Adds up attention weights by distance, of every query, in every layer that it hears of."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._layers: list[Tensor] = []

    def add(self, index: int, scoring: Scoring, counts: Tensor) -> None:
        """Takes up a layer, the first of them at index 0.

        Args:
            index: Which layer it is.
            scoring: What its scores are made of, for all `length` queries.
            counts: Which of the samples count, `[B]`.
        """
        _, num_heads, num_queries, _ = scoring.query.shape
        assert num_queries == scoring.key.size(2) == self._length, "all of a window is there at once"
        if index == len(self._layers):
            device = scoring.query.device
            self._layers.append(torch.zeros(num_heads, self._length, dtype=torch.float64, device=device))
        total = self._layers[index]
        for tile, weights in scoring.weights():
            of_heads = weights[counts.to(weights.device)].sum(0, dtype=torch.float64)
            sums = diagonal_sums(of_heads.flip(-2).contiguous(), on_diagonal=True)
            total[:, : tile.position + 1] += sums.flip(-1)

    @property
    def total(self) -> Tensor:
        """The sums over queries and samples, `[layers, H, length]` fp64 on the CPU."""
        return torch.stack(self._layers).cpu()
