"""The `parallel` section of a run file: over how many processes each axis of the work is divided."""

from pydantic import PositiveInt, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake


class ParallelConfig(Config):
    """The sizes of the process mesh; what they leave of the world is data parallel."""

    tensor: PositiveInt = 1
    """Processes that share every layer, each with its part of the heads; they should share one node."""
    sequence: bool = False
    """Divides the activations between the shared layers over the tensor processes too, along the sequence."""
    context: PositiveInt = 1
    """Processes that share every sequence."""
    pipeline: PositiveInt = 1
    """Processes that share the layers, each with some of them."""

    @field_validator("sequence")
    @classmethod
    def _sequence_needs_tensor(cls, sequence: bool, info: ValidationInfo) -> bool:
        if sequence and info.data.get("tensor") == 1:
            raise PydanticCustomError("sequence", "needs tensor > 1, whose processes it divides the sequence over")
        return sequence

    @field_validator("context", "pipeline")
    @classmethod
    def _not_available(cls, size: int) -> int:
        if size > 1:
            raise PydanticCustomError(
                "not_available", "must be 1: context and pipeline parallelism are not available in this version"
            )
        return size

    @property
    def model(self) -> int:
        """Processes that hold one copy of the model together."""
        return self.tensor * self.context * self.pipeline

    def data(self, world_size: int) -> int:
        """Copies of the model that a world of `world_size` processes trains on different data."""
        if world_size % self.model:
            divisors = [size for size in range(1, world_size + 1) if world_size % size == 0]
            nearest = min(divisors, key=lambda size: abs(size - self.tensor))
            below = world_size - world_size % self.model
            sizes = " or ".join(str(size) for size in (below, below + self.model) if size)
            raise ConfigError(
                Mistake(
                    key="parallel.tensor",
                    value=self.tensor,
                    rule=f"must divide the world size {world_size}",
                    remedy=f"set it to {nearest}, or start {sizes} processes",
                )
            )
        return world_size // self.model
