"""A learned vector for each position, added to the embeddings."""

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from megatron_mep.encodings.base import Encoding, LayerSizes, Weight
from megatron_mep.encodings.placement import Embedded


class LearnedAbsolute(Embedded, Encoding):
    """The embedding of the token at position i takes on row i of a table of N learned vectors.

    The paper has as many rows as the longest sequence has tokens, and no answer for longer ones. Here every position
    from N on takes the last row, so that such a sequence can be evaluated at all: what is measured there is a model
    that no longer tells its tokens' positions apart. Initial values N(0, init_std^2), 0.02 as in GPT-2's and
    Megatron's code.

    Source: "Attention Is All You Need", arXiv:1706.03762, table 3, row E, after arXiv:1705.03122, section 3.1.
    """

    name: Literal["learned_absolute"] = "learned_absolute"
    source: ClassVar[str] = "arXiv:1706.03762, table 3, row E"
    formula: ClassVar[str] = "add e_min(i, N - 1)"

    num_positions: PositiveInt | None = None
    """Rows of the table, N; where absent, the training length."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial values."""

    def resolved(self, train_length: int) -> Self:
        """Itself, with a row for each position of training unless rows are stated."""
        return self.model_copy(update={"num_positions": self.num_positions or train_length})

    @property
    def num_told_apart(self) -> int | None:
        """The rows of the table."""
        return self.num_positions

    def embedding_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """The table, `table [N, hidden_size]`."""
        assert self.num_positions is not None, "the training length fills it in"
        return {"table": random_table(self.num_positions, sizes.hidden_size, self.init_std, generator)}

    def added(self, position: Tensor, hidden_size: int, **weights: Tensor) -> Tensor:  # noqa: ARG002
        """The rows `[*position.shape, hidden_size]`."""
        return rows_at(position, weights["table"])


def random_table(num_rows: int, hidden_size: int, std: float, generator: torch.Generator) -> Weight:
    """A learned table of normal vectors, `[num_rows, hidden_size]`."""
    return Weight(std * torch.randn(num_rows, hidden_size, generator=generator, dtype=torch.float32), per_head=False)


def rows_at(position: Tensor, table: Tensor) -> Tensor:
    """The table's rows at whole positions of any shape, its last one beyond its end, in the wider of both types."""
    rows = table[position.long().clamp(max=len(table) - 1)]
    return rows.to(torch.promote_types(table.dtype, position.dtype))
