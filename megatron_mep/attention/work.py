"""What attention computed of all there was, and what it dropped."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from megatron_mep.attention.tiles import Tile


@dataclass
class Work:
    """Added up over calls. Counts may be tensors on a GPU, so that adding to them does not wait for it."""

    kept_pairs: int | Tensor = 0
    """Pairs of a query and a key that it sees whose score was computed, over all heads and samples."""
    causal_pairs: int = 0
    """All pairs of a query and a key that it sees."""
    dropped: float = 0.0
    """The largest share of any row's softmax that may have been dropped: a proved bound."""

    @property
    def kept(self) -> float:
        """The share of pairs that was computed; 1 where there were none."""
        return float(self.kept_pairs) / self.causal_pairs if self.causal_pairs else 1.0

    def add(self, tiles: Iterable[Tile], query_shape: tuple[int, ...], num_keys: int, dropped: float) -> None:
        """One call of queries `[B, H, Q, D]` at the last of `num_keys` positions, computed in these tiles."""
        num_samples, num_heads = query_shape[:2]
        kept = num_samples * sum(len(range(num_heads)[tile.heads]) * tile.num_pairs for tile in tiles)
        self.count(kept, query_shape, num_keys, dropped)

    def count(self, kept_pairs: int | Tensor, query_shape: tuple[int, ...], num_keys: int, dropped: float) -> None:
        """One call of queries `[B, H, Q, D]` at the last of `num_keys` positions, that computed so many pairs."""
        num_samples, num_heads, num_queries, _ = query_shape
        whole = Tile(slice(0, num_queries), slice(0, num_keys), num_keys - 1)
        self.kept_pairs = self.kept_pairs + kept_pairs
        self.causal_pairs += num_samples * num_heads * whole.num_pairs
        self.dropped = max(self.dropped, dropped)

    def taken(self) -> "Work":
        """What was added up, and begin anew."""
        taken = Work(self.kept_pairs, self.causal_pairs, self.dropped)
        self.kept_pairs, self.causal_pairs, self.dropped = 0, 0, 0.0
        return taken
