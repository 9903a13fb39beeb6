"""CoPE: positions that count the tokens for which the query opens a gate."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings.base import LayerSizes, ScoreMix, Sharable, Weight


class Cope(Sharable, ScoreMix):
    """Adds q_i e[p_ij] / sqrt(D) to the scores, p_ij = min(P - 1, sum_{j <= t <= i} sigmoid(q_i k_t / sqrt(D))).

    Positions are fractions: q_i e is taken at the whole numbers below and above, and interpolated. The table e of P
    positions is one for all heads, and starts at zero, where CoPE equals no encoding. All of this is as in the
    authors' code, whose default gates come from the keys; its gates from keys of their own or from values, and its
    sum with a relative encoding, are not offered.

    Source: "Contextual Position Encoding: Learning to Count What's Important", arXiv:2405.18719, eq. 3 and 4, and
    the authors' code.
    """

    name: Literal["cope"] = "cope"
    source: ClassVar[str] = "arXiv:2405.18719, eq. 3 and 4"
    formula: ClassVar[str] = "q_i e[sum_{j<=t<=i} sigmoid(q_i k_t)]"
    across_heads: ClassVar[bool] = False

    num_positions: int | None = Field(None, ge=2)
    """Positions P in the table, counted from 0; one more than the training length where absent. 64 is common too."""
    divided: bool = True
    """Divides what the table adds by sqrt(D), as scores are."""

    @property
    def learned(self) -> bool:
        """Always: the table."""
        return True

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:  # noqa: ARG002
        """None: the table fits any sizes."""
        return []

    def resolved(self, train_length: int) -> "Cope":
        """Itself, with a table of a position for every count of the training length's tokens."""
        return self.model_copy(update={"num_positions": self.num_positions or train_length + 1})

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        """The table, `embedding [D, P]`."""
        assert self.num_positions is not None, "the table's length follows the training length: `resolved` fills it in"
        table = torch.zeros(sizes.head_size, self.num_positions, dtype=torch.float32)
        return {"embedding": Weight(table, per_head=False)}

    def of_scores(
        self, scores: Tensor, query: Tensor, query_position: Tensor, key_position: Tensor, **weights: Tensor
    ) -> Tensor:
        """The scores `[B, H, Q, K]` and what the table adds to them."""
        last = weights["embedding"].size(1) - 1
        gates = scores.sigmoid().masked_fill(key_position > query_position[:, None], 0)
        count = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        at_whole = query @ weights["embedding"].to(query.dtype)
        below = count.long()
        above = (below + 1).clamp(max=last)
        added = torch.lerp(at_whole.gather(-1, below), at_whole.gather(-1, above), count - below)
        return scores + (added if self.divided else added * math.sqrt(query.size(-1)))
