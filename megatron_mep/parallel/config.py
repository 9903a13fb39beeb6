"""The `parallel` section of a run file: over how many processes each axis of the work is divided."""

import math
from typing import Literal

from pydantic import PositiveInt, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake

Exchange = Literal["all_gather", "ulysses", "ring"]
"""How the processes of `context` bring queries and keys together."""


class ParallelConfig(Config):
    """The sizes of the process mesh; what they leave of the world is data parallel."""

    tensor: PositiveInt = 1
    """Processes that share every layer, each with its part of the heads; they should share one node."""
    sequence: bool = False
    """Divides the activations between the shared layers over the tensor processes too, along the sequence."""
    context: PositiveInt = 1
    """Processes that share every sequence, each with one chunk from its front and one from its end."""
    context_exchange: Exchange = "all_gather"
    """How attention meets the chunks of others where context > 1.

    `all_gather` collects all keys and values on every process, and serves every encoding. `ulysses` gives each process
    the whole sequence in some of the heads. `ring` passes keys and values around, so that no process holds all of them.
    """
    pipeline: PositiveInt = 1
    """Processes that share the layers, each with as many of them, in stages; micro-batches follow one another through
    them (1F1B). Needs ZeRO stage 1."""
    virtual_pipeline: PositiveInt = 1
    """Chunks of layers that each stage has, between two of which lie those of the other stages (interleaved 1F1B).

    Stages wait that many times less for each other, and send that many times more. Needs pipeline > 1, and as many
    micro-batches on each data-parallel rank as there are stages, or a multiple."""

    @field_validator("sequence")
    @classmethod
    def _sequence_needs_tensor(cls, sequence: bool, info: ValidationInfo) -> bool:
        if sequence and info.data.get("tensor") == 1:
            raise PydanticCustomError("sequence", "needs tensor > 1, whose processes it divides the sequence over")
        return sequence

    @field_validator("virtual_pipeline")
    @classmethod
    def _chunks_need_stages(cls, virtual_pipeline: int, info: ValidationInfo) -> int:
        if virtual_pipeline > 1 and info.data.get("pipeline") == 1:
            raise PydanticCustomError("virtual_pipeline", "needs pipeline > 1, whose stages it divides into chunks")
        return virtual_pipeline

    @property
    def model(self) -> int:
        """Processes that hold one copy of the model together."""
        return self.tensor * self.context * self.pipeline

    @property
    def sequence_multiple(self) -> int:
        """What the length of every sequence must be a multiple of, to be divided evenly over the processes."""
        chunks = 2 * self.context if self.context > 1 else 1
        return math.lcm(chunks, self.context * self.tensor if self.sequence else 1)

    @property
    def dividing(self) -> str:
        """What divides sequences so, in the words of a rule."""
        under = [f"parallel.tensor={self.tensor} and parallel.sequence"] if self.sequence else []
        under += [f"parallel.context={self.context}, whose ranks have two chunks each"] if self.context > 1 else []
        return f"under {' and '.join(under)}"

    def data(self, world_size: int) -> int:
        """Copies of the model that a world of `world_size` processes trains on different data."""
        if world_size % self.model:
            raise ConfigError(self._indivisible(world_size))
        return world_size // self.model

    def _indivisible(self, world_size: int) -> Mistake:
        below = world_size - world_size % self.model
        sizes = " or ".join(str(size) for size in (below, below + self.model) if size)
        # the first axis that does not divide what those before it leave
        left, key, size = world_size, "parallel.tensor", self.tensor
        for axis in ("tensor", "context", "pipeline"):
            key, size = f"parallel.{axis}", getattr(self, axis)
            if left % size:
                break
            left //= size
        others = self.model // size
        fitting = [each for each in range(1, world_size + 1) if world_size % (each * others) == 0]
        nearest = [f"set it to {min(fitting, key=lambda each: abs(each - size))}"] if fitting else []
        beside = f", times {others} of the other axes," if others > 1 else ""
        return Mistake(
            key=key,
            value=size,
            rule=f"must{beside} divide the world size {world_size}",
            remedy=", or ".join([*nearest, f"start {sizes} processes"]),
        )
