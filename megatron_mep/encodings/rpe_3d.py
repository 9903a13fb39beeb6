"""3D rotary position encoding: rotations inside chunks of the sequence, and of the chunks."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megatron_mep.config.errors import Mistake
from megatron_mep.encodings import products
from megatron_mep.encodings.base import LayerSizes, PairScores
from megatron_mep.encodings.rotary import angles_at, geometric, odd_heads
from megatron_mep.encodings.rotate import turn


class Rpe3d(PairScores):
    """Place m of chunk a and place n of chunk b <= a turn pair r of their product by x theta_r + phi_a - phi_b.

    theta_r = base^(-2 r / D), phi_a = chunk_base^(-a), both counted from 0. A chunk holds c = chunk_size - local_window
    tokens, and x = m - n inside a chunk, which is RoPE. A key of the chunk before is met from the place
    min(m + c, chunk_size), so that keys less than the local window back have their true distance; one of any earlier
    chunk from the place min(2 c - 1, chunk_size). No two places are thus further apart than the chunk size, at any
    length.

    Reconstructed: the two angles and the difference of phases are the paper's; the places from which other chunks are
    seen, the chunk size of 3/4 of the training length and the window of 1/16 of it are those of the released code.
    That code gives no phase to neighbouring chunks (`phase_from: 2` here); it counts the phases of queries from the
    chunk before, gives the keys of the first two chunks none, and multiplies phases into other keys more than once,
    none of which is followed.

    Source: "3D-RPE: Enhancing Long-Context Modeling Through 3D Rotary Position Encoding", arXiv:2406.09897, and its
    released code.
    """

    name: Literal["rpe_3d"] = "rpe_3d"
    source: ClassVar[str] = "arXiv:2406.09897 and its released code (reconstructed)"
    formula: ClassVar[str] = "turn pair r by x(m, n, a - b) base^(-2r/D) + phi_a - phi_b"

    base: float = Field(10000.0, gt=1)
    """The base of the geometric series of wavelengths inside a chunk."""
    chunk_base: float = Field(10000.0, gt=1)
    """The base of the phases of chunks."""
    chunk_size: int | None = Field(None, gt=0)
    """The largest distance of two places; 3/4 of the training length unless stated."""
    local_window: int | None = Field(None, ge=0)
    """Tokens of the chunk before that are at their true distance; 1/12 of the chunk size unless stated."""
    phase_from: Literal[1, 2] = 1
    """How many chunks apart two tokens are before the phases of their chunks count."""

    def resolved(self, train_length: int) -> "Rpe3d":
        """Itself, with the chunk size and the local window filled in unless they are stated."""
        chunk_size = self.chunk_size or max(1, train_length * 3 // 4)
        local_window = chunk_size // 12 if self.local_window is None else self.local_window
        return self.model_copy(update={"chunk_size": chunk_size, "local_window": local_window})

    def mistakes(self, sizes: LayerSizes) -> list[Mistake]:
        """The base's, heads of odd size, and a window that leaves nothing of a chunk."""
        mistakes = [*super().mistakes(sizes), *odd_heads(self.name, sizes)]
        if self.chunk_size and self.local_window and self.local_window >= self.chunk_size:
            rule = f"must be below chunk_size={self.chunk_size}, of which it is a part"
            remedy = f"leave it out for {self.chunk_size // 12}, or enlarge the chunk"
            mistakes.append(Mistake("local_window", self.local_window, rule, remedy))
        return mistakes

    @property
    def chunk_length(self) -> int:
        """Tokens of a chunk, c."""
        assert self.chunk_size is not None, "the chunk size is filled in by `resolved`"
        assert self.local_window is not None, "the local window is filled in by `resolved`"
        assert self.local_window < self.chunk_size, "the local window is a part of the chunk size"
        return self.chunk_size - self.local_window

    def of_pairs(
        self,
        query: Tensor,
        key: Tensor,
        query_position: Tensor,
        key_position: Tensor,
        **weights: Tensor,  # noqa: ARG002
    ) -> Tensor:
        """The scores `[B, H, Q, K]`."""
        (query_chunk, query_place), (key_chunk, key_place) = map(self._chunked, (query_position, key_position))
        turned_key = self._turned(key, key_place, key_chunk)
        farthest = self.chunk_size or 0
        after = (query_place + self.chunk_length).clamp(max=farthest)
        beyond = torch.full_like(query_place, min(2 * self.chunk_length - 1, farthest))
        # whose phase cancels that of the chunk before, where neighbours have none
        neighbour = query_chunk if self.phase_from == 1 else query_chunk - 1
        inside, before, earlier = (
            products.scores(self._turned(query, place, chunk), turned_key)
            for place, chunk in ((query_place, query_chunk), (after, neighbour), (beyond, query_chunk))
        )
        apart = query_chunk[:, None] - key_chunk
        return torch.where(apart <= 0, inside, torch.where(apart == 1, before, earlier))

    def _chunked(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """The chunk of each position, and the place in it."""
        chunk = torch.div(position, self.chunk_length, rounding_mode="floor")
        return chunk, position - chunk * self.chunk_length

    def _turned(self, heads: Tensor, place: Tensor, chunk: Tensor) -> Tensor:
        """Heads `[B, H, S, D]` turned by the angles of their places and the phase of their chunks."""
        phase = self.chunk_base ** -chunk.double()
        angle = angles_at(place, geometric(self.base, heads.size(-1))) + phase.to(place.dtype)[:, None]
        return turn(heads, angle.cos(), angle.sin())
