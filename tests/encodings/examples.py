"""One small encoding of each kind that reads more than distances, as its paper has it."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.encodings.base import (
    DistanceBias,
    Encoding,
    KeyBias,
    LayerSizes,
    PairScores,
    PositionBias,
    Rotation,
    ScoreMix,
    Sharable,
    Weight,
)
from megatron_mep.encodings.placement import Embedded, Placed
from megatron_mep.encodings.products import scores as products_of
from megatron_mep.encodings.rotate import rotate


def normal(generator: torch.Generator, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=generator)


class Fire(PositionBias):
    """b_h(i, j) = f(psi(i - j) / psi(max(L, i)))_h with psi(x) = log(c x + 1) and f of one hidden layer.

    A constant of a head, the bias of f's last layer, would change nothing after the softmax.
    """

    name: str = "fire"
    source: ClassVar[str] = "arXiv:2310.04418"
    formula: ClassVar[str] = "f(psi(i - j) / psi(max(L, i)))_h"
    width: int = 4
    threshold: float = 8.5

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        return {
            "c": Weight(torch.tensor([0.1]), per_head=False),
            "multiplier": Weight(torch.tensor([1.0]), per_head=False),
            "inner": Weight(normal(generator, self.width), per_head=False),
            "inner_bias": Weight(normal(generator, self.width).abs(), per_head=False),
            "outer": Weight(normal(generator, num_heads, self.width)),
        }

    def of_positions(self, query_position: Tensor, key_position: Tensor, **weights: Tensor) -> Tensor:
        weights = {name: weight.to(query_position.dtype) for name, weight in weights.items()}
        scale = weights["c"].abs()
        distance = (query_position[:, None] - key_position).clamp(min=0)
        threshold = (weights["multiplier"] * self.threshold).abs()
        longest = torch.maximum(threshold, query_position)[:, None]
        ratio = torch.log1p(scale * distance) / (torch.log1p(scale * longest) + 1e-6)
        hidden = torch.relu(ratio[..., None] * weights["inner"] + weights["inner_bias"])
        return torch.einsum("qkw,hw->hqk", hidden, weights["outer"])


class Fox(KeyBias):
    """The forgetting transformer's bias, the sum of log sigmoid(w_h x + a_h) over the tokens after the key."""

    name: str = "fox"
    source: ClassVar[str] = "arXiv:2503.02130"
    formula: ClassVar[str] = "sum_{j < t <= i} log sigmoid(w_h x_t + a_h)"

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        return {
            "gate": Weight(normal(generator, sizes.num_heads, sizes.hidden_size) / 4),
            "gate_bias": Weight(torch.full((sizes.num_heads,), 2.0)),
        }

    def increments(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        return functional.softplus(-(_projected(hidden, weights["gate"]) + weights["gate_bias"][:, None]))


class Cable(KeyBias):
    """b_h(i, j) = g_h(i) sum_{j < t <= i} -ReLU(w_h x_t) with the gain g_h(i) = softplus(v_h x_i)."""

    name: str = "cable"
    source: ClassVar[str] = "arXiv:2503.08067"
    formula: ClassVar[str] = "-softplus(v_h x_i) sum_{j < t <= i} ReLU(w_h x_t)"

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        shape = (sizes.num_heads, sizes.hidden_size)
        return {"decay": Weight(normal(generator, *shape) / 4), "strength": Weight(normal(generator, *shape) / 4)}

    def increments(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        # c falls where the bias is to fall with distance: c(j) - c(i) is minus the sum between
        return torch.relu(_projected(hidden, weights["decay"]))

    def gain(self, hidden: Tensor, **weights: Tensor) -> Tensor:
        return functional.softplus(_projected(hidden, weights["strength"]))


class Cope(ScoreMix):
    """Adds q_i e[p_ij], interpolated, where p_ij counts the tokens from j to i whose gate sigmoid(q_i k) is open."""

    name: str = "cope"
    source: ClassVar[str] = "arXiv:2405.18719"
    formula: ClassVar[str] = "q_i e[sum_{j <= t <= i} sigmoid(q_i k_t)]"
    across_heads: ClassVar[bool] = False
    num_positions: int = 6

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        return {"embedding": Weight(normal(generator, sizes.head_size, self.num_positions), per_head=False)}

    def of_scores(
        self, scores: Tensor, query: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        causal = key_position <= query_position[:, None]
        count = (scores.sigmoid() * causal).flip(-1).cumsum(-1).flip(-1).clamp(max=self.num_positions - 1)
        at_whole = query @ weights["embedding"].to(query.dtype)
        below, above = count.floor().long(), count.ceil().long()
        share = count - below
        return scores + at_whole.gather(-1, below) * (1 - share) + at_whole.gather(-1, above) * share


class Dape(ScoreMix):
    """S + B + f(S, B): B is ALiBi's bias, f two convolutions over the heads of S and B and over `kernel` keys."""

    name: str = "dape"
    source: ClassVar[str] = "arXiv:2410.04798"
    formula: ClassVar[str] = "S + B + f(S, B)"
    across_heads: ClassVar[bool] = True
    kernel: int = 3
    width: int = 5

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        return {
            "slope": Weight(torch.logspace(0, -2, num_heads), learned=False),
            "inner": Weight(normal(generator, self.width, 2 * num_heads, 1, self.kernel) / 2, per_head=False),
            "outer": Weight(normal(generator, num_heads, self.width, 1, self.kernel) / 2),
        }

    def of_scores(
        self,
        scores: Tensor,
        query: Tensor,  # noqa: ARG002
        query_position: Tensor,
        key_position: Tensor,
        **weights: Tensor,
    ) -> Tensor:
        weights = {name: weight.to(scores.dtype) for name, weight in weights.items()}
        distance = (query_position[:, None] - key_position).clamp(min=0)
        bias = (-weights["slope"][:, None, None] * distance).expand_as(scores)
        reach = self.kernel // 2
        # hidden values just after the last key count as much as those after any other
        padded = functional.pad(torch.cat((scores, bias), dim=1), (0, reach))
        hidden = functional.leaky_relu(functional.conv2d(padded, weights["inner"], padding=(0, reach)))
        mixed = functional.conv2d(hidden, weights["outer"], padding=(0, reach))
        return scores + bias + mixed[..., : scores.size(-1)]


class SharedSlope(Sharable, DistanceBias):
    """b_h(d) = -exp(s_h) d with learned s."""

    name: str = "shared"
    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "-exp(s_h) d"

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        return {"s": Weight(normal(generator, num_heads) - 1)}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        return -weights["s"].to(distance.dtype).exp().reshape(-1, *(1,) * distance.dim()) * distance


class Table(Embedded, Encoding):
    """A learned vector for each of the first positions, the last one for all that follow."""

    name: str = "table"
    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "x_i + e_i"
    num_positions: int = 7

    def embedding_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        return {"table": Weight(normal(generator, self.num_positions, sizes.hidden_size), per_head=False)}

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:
        assert weights["table"].size(1) == hidden_size
        return weights["table"].to(position.dtype)[position.long().clamp(max=self.num_positions - 1)]


class Segments(Embedded, Placed, Rotation):
    """Tokens below `end` end a segment: turned by the segment's number, a wave added by the place in it."""

    name: str = "segments"
    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "turn by segment"
    end: int = 20

    def places(self, tokens: Tensor, training: bool) -> Tensor:  # noqa: ARG002
        ends = tokens < self.end
        segment = ends.cumsum(-1) - ends.long()
        index = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        first = torch.where(segment.diff(dim=-1, prepend=segment[:, :1] - 1) > 0, index, 0).cummax(-1).values
        return torch.stack((index - first, segment))

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        return torch.sin(position[0, ..., None] * torch.arange(1, hidden_size + 1, device=position.device))

    def angles(self, position: Tensor, head_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        return position[..., None] * torch.linspace(1, 0.1, head_size // 2, dtype=position.dtype)

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        return rotate(heads, self.angles(position[1], heads.size(-1), **weights))


class Halved(PairScores):
    """Turned by the distance up to `near`, by half of what exceeds it beyond, and no more than that."""

    name: str = "halved"
    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "turn by near + (d - near) / 2"
    near: float = 4.0

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        return {"gain": Weight(1 + normal(generator, num_heads) / 4)}

    def of_pairs(
        self, query: Tensor, key: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        def turned(heads: Tensor, position: Tensor) -> Tensor:
            angle = position[:, None] * torch.linspace(1, 0.1, heads.size(-1) // 2, dtype=heads.dtype)
            return rotate(heads.permute(2, 0, 1, 3), angle).permute(1, 2, 0, 3)

        near = products_of(turned(query, query_position), turned(key, key_position))
        far = products_of(turned(query, (query_position + self.near) / 2), turned(key, key_position / 2))
        is_near = query_position[:, None] - key_position <= self.near
        return torch.where(is_near, near, far) * weights["gain"].to(query.dtype)[:, None, None]


def _projected(hidden: Tensor, weight: Tensor) -> Tensor:
    """`[B, H, S]` of hidden states `[S, B, hidden_size]`, in fp32 or wider."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    return torch.einsum("sbc,hc->bhs", hidden.to(dtype), weight.to(dtype))
