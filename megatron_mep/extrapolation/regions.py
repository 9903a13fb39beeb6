"""Pairs of queries and keys that see each other from other places than their own, or not at all."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from megatron_mep.encodings import products
from megatron_mep.encodings.base import DistanceBias, Encoding, LayerSizes, PairScores, Rotation, Sharable, Weight
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.placement import Embedded, Placed
from megatron_mep.encodings.rotary import Rotary
from megatron_mep.encodings.xpos import Xpos
from megatron_mep.extrapolation.base import Trick, replaced
from megatron_mep.extrapolation.window import Windowed


class Region(NamedTuple):
    """Some pairs of Q queries and K keys, and the places from which they see each other."""

    pairs: Tensor
    """Which they are, `[Q, K]`; for keys in the future it says what it likes."""
    query_position: Tensor
    """`[Q]`, fp32 or wider."""
    key_position: Tensor
    """`[K]`, in the same type."""
    query_factor: Tensor | None = None
    """What multiplies the scaled products of queries and keys, `[Q]`; `None` for 1."""


class Regions(Sharable, PairScores):
    """A trained encoding under which every pair falls into one region, or into none and is excluded.

    Products are computed region by region, for the keys that any query of a chunk has there: time and memory are those
    of the pairs that are seen, and for long sequences a few times those of the chunk's scores.
    """

    name: str
    inner: Encoding
    """What acts, at the places that the regions say; it declares the weights."""

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """Those of the trained encoding."""
        return self.inner.layer_weights(sizes, generator)

    @property
    def learned(self) -> bool:
        """Whether the trained encoding learns."""
        return self.inner.learned

    def query_factor(self, position: Tensor) -> Tensor | None:
        """That of the trained encoding."""
        return self.inner.query_factor(position)

    def at_length(self, num_keys: int) -> PairScores:
        """Itself, on what the trained encoding is at that length."""
        if not isinstance(self.inner, PairScores):
            return self
        return self.model_copy(update={"inner": self.inner.at_length(num_keys)})

    @abstractmethod
    def regions(self, query_position: Tensor, key_position: Tensor) -> Iterator[Region]:
        """The regions of queries `[Q]` and keys `[K]`, disjoint; every query is in one with itself."""

    def of_pairs(
        self, query: Tensor, key: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        """The scores `[B, H, Q, K]`, -inf for pairs in no region."""
        scores = query.new_full((*query.shape[:3], key.size(2)), -torch.inf)
        for region in self.regions(query_position, key_position):
            seen = region.pairs.any(dim=0).nonzero().flatten()
            if len(seen):
                within = region._replace(pairs=region.pairs[:, seen], key_position=region.key_position[seen])
                inside = self._scores(query, key[:, :, seen], within, weights)
                scores[..., seen] = torch.where(within.pairs, inside, scores[..., seen])
        return scores

    def _scores(self, query: Tensor, key: Tensor, region: Region, weights: dict[str, Tensor]) -> Tensor:
        """What the trained encoding makes of all pairs at a region's places."""
        inner, at_query, at_key = self.inner, region.query_position, region.key_position
        if region.query_factor is not None:
            query = query * region.query_factor[:, None].to(query.dtype)
        if isinstance(inner, Rotation):
            if inner.turns_heads_apart:
                key = key.repeat_interleave(query.size(1) // key.size(1), dim=1)
            query, key = (
                inner.turned(heads.permute(2, 0, 1, 3), at, **weights).permute(1, 2, 0, 3)
                for heads, at in ((query, at_query), (key, at_key))
            )
        if isinstance(inner, PairScores):
            return inner.of_pairs(query, key, at_query, at_key, **weights)
        scores = products.scores(query, key)
        if isinstance(inner, DistanceBias):
            distance = (at_query[:, None] - at_key).clamp(min=0)
            scores = scores + inner.of_distance(distance, **weights).to(scores.dtype)
        return scores


R = TypeVar("R", bound=Regions)


class RegionTrick(Trick):
    """A trick that divides pairs into regions."""

    acts_on: ClassVar[tuple[type[Encoding], ...]] = (Rotation, Xpos)
    """The kinds of encoding that it can move to other places."""
    needs: ClassVar[str] = "an encoding that turns queries and keys by their positions"
    """These kinds, in words."""
    moves: ClassVar[bool] = True
    """Whether pairs see each other from other places than their own."""

    def against(self, encoding: Encoding) -> str | None:
        """It moves queries and keys of a chunk, which must not turn by the length of what stands beside them."""
        if not isinstance(encoding, self.acts_on) or isinstance(encoding, Placed | Embedded):
            return f"needs {self.needs}"
        if self.moves and isinstance(encoding, Windowed):
            return "needs distances that no window counts, for it changes them: name the window after it"
        return "needs angles that follow from a position alone" if _turns_by_length(encoding) else None

    def put_on(self, encoding: Encoding, regions: type[R], **options: Any) -> R:
        """The trained encoding under the trick's regions."""
        assert self.against(encoding) is None, "it was refused before"
        shared = isinstance(encoding, Sharable) and encoding.shared_by_layers
        return regions(name=f"{encoding.name} + {self.name}", inner=encoding, shared_by_layers=shared, **options)


class AnyRegionTrick(RegionTrick):
    """One for all encodings that act by the distance of a pair, and for none."""

    acts_on: ClassVar[tuple[type[Encoding], ...]] = (Rotation, Xpos, DistanceBias, Nope)
    needs: ClassVar[str] = (
        "an encoding that turns queries and keys by their positions or adds a bias by distance, or nope"
    )


def distances(query_position: Tensor, key_position: Tensor) -> Tensor:
    """How far each key lies behind each query, `[Q, K]`; below 0 in the future."""
    return query_position[:, None] - key_position


def _turns_by_length(encoding: Encoding) -> bool:
    """Whether a trick before made the angle at a position depend on others that it stands beside."""
    if not isinstance(encoding, Rotary) or "angles" not in replaced(encoding):
        return False
    alone, beside = (
        encoding.angles(position, head_size=64)[0] for position in (torch.ones(1), torch.tensor([1.0, 2.0**20]))
    )
    return not alone.equal(beside)
