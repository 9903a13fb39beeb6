"""T5's learned bias for each bucket of distances."""

import math
from bisect import bisect_left
from functools import cache
from typing import ClassVar, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from megatron_mep.encodings.base import DistanceBias, LayerSizes, Sharable, Weight


class T5(Sharable, DistanceBias):
    """b_h(d) = T_h[bucket(d)]: a learned number for each head and bucket, of which far distances share the last.

    With E = num_buckets // 2 and M = max_distance, bucket(d) = d where d < E, and otherwise the smaller of
    E + floor(log(d / E) / log(M / E) (num_buckets - E)) and num_buckets - 1. Published is one table for all layers
    (`shared_by_layers`), added to scores that are not divided by sqrt(D); here they are. Initially T is normal with
    variance 2 / (num_buckets + H), as in GPT-NeoX; T5's own initial values differ.

    Source: "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", arXiv:1910.10683,
    section 2.1; buckets and defaults as in the code of Megatron-core and GPT-NeoX.
    """

    name: Literal["t5"] = "t5"
    source: ClassVar[str] = "arXiv:1910.10683, section 2.1"
    formula: ClassVar[str] = "T_h[bucket(d)]"

    num_buckets: int = Field(32, ge=2)
    """Numbers that each head learns; the first half of them are for one distance each."""
    max_distance: int = Field(128, ge=2)
    """From where on all distances share the last bucket."""
    scaled: bool = False
    """Multiplies the bias by sqrt(D), as GPT-NeoX does."""

    @field_validator("max_distance")
    @classmethod
    def _beyond_single_distances(cls, max_distance: int, info: ValidationInfo) -> int:
        single = info.data.get("num_buckets", 2) // 2
        if max_distance <= single:
            raise ValueError(
                f"must exceed the {single} distances that have a bucket each; "
                f"set it to {single + 1} or more, or num_buckets to {2 * max_distance - 1} or less"
            )
        return max_distance

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        """`table [H, num_buckets]`."""
        std = math.sqrt(2 / (self.num_buckets + num_heads))
        table = torch.randn(num_heads, self.num_buckets, generator=generator, dtype=torch.float32)
        return {"table": Weight(std * table)}

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """The table, and sqrt(D) as the constant `scale [1]` where it multiplies the bias."""
        weights = self.weights(sizes.num_heads, generator)
        if not self.scaled:
            return weights
        scale = torch.tensor([sizes.head_size**0.5], dtype=torch.float32)
        return weights | {"scale": Weight(scale, learned=False, per_head=False)}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        """The bias `[H, *distance.shape]`."""
        table = weights["table"].to(distance.dtype)
        if self.scaled:
            table = table * weights["scale"].to(distance.dtype)
        bucket = self.bucket(distance)
        return table.index_select(1, bucket.flatten()).unflatten(1, bucket.shape)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance, int64."""
        starts = torch.tensor(_starts(self.num_buckets, self.max_distance), dtype=distance.dtype)
        return torch.bucketize(distance, starts.to(distance.device), right=True)


@cache
def _starts(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance of each bucket but the first, exact where a rounded logarithm may miss it by one."""
    single = num_buckets // 2
    wide = num_buckets - single
    # log(d / E) / log(M / E) wide >= k, with whole numbers on both sides
    limits = (single ** (wide - k) * max_distance**k for k in range(1, wide))
    return (
        *range(1, single + 1),
        *(bisect_left(range(max_distance), limit, key=lambda distance: distance**wide) for limit in limits),
    )
