"""Which layers a pipeline stage has, and what else of the model is there."""

from dataclasses import dataclass
from itertools import chain

from megatron_mep.encodings.base import Sharable
from megatron_mep.model.config import ModelConfig
from megatron_mep.parallel.config import ParallelConfig

ENCODING_WEIGHTS = "self_attention.core_attention.encoding_weights."
"""What the names of the weights of its encoding begin with in a layer."""


@dataclass(frozen=True)
class Stage:
    """A pipeline stage's place among all of them."""

    rank: int = 0
    """Counted from 0."""
    size: int = 1
    """How many there are."""
    num_chunks: int = 1
    """Parts that each of them has; between two of them lie those of all other stages."""

    @classmethod
    def of(cls, parallel: ParallelConfig, rank: int = 0) -> "Stage":
        """That of a rank of the pipeline axis."""
        return cls(rank, parallel.pipeline, parallel.virtual_pipeline)

    @property
    def is_first(self) -> bool:
        """Whether the embedding is here."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether the output layer is here."""
        return self.rank == self.size - 1

    def chunks(self, model: ModelConfig) -> list[range]:
        """The numbers of the layers of each chunk, counted from 1."""
        parts = self.size * self.num_chunks
        assert model.num_layers % parts == 0, f"{parts} chunks cannot share {model.num_layers} layers"
        each = model.num_layers // parts
        firsts = range(self.rank * each + 1, model.num_layers + 1, self.size * each)
        return [range(first, first + each) for first in firsts]

    def layers(self, model: ModelConfig) -> tuple[int, ...]:
        """The numbers of all layers that are here."""
        return tuple(chain.from_iterable(self.chunks(model)))

    def waiting(self, micro_batches: int) -> float:
        """The share of a step in which a stage waits for others: (p - 1) / (v m + p - 1), where all work alike."""
        others = self.size - 1
        return others / (self.num_chunks * micro_batches + others)

    def told(self, num_layers: int, micro_batches: int) -> str:
        """How the stages share so many layers, and what it costs, in words."""
        each = num_layers // self.size
        layers, schedule = f"{each} layers", "1F1B"
        if self.num_chunks > 1:
            layers, schedule = f"{self.num_chunks} chunks of {each // self.num_chunks} layers", "interleaved 1F1B"
        waits = f"(p-1)/(vm+p-1) = {self.waiting(micro_batches):.1%} of a step"
        v, m = self.num_chunks, micro_batches
        return f"{self.size} stages of {layers} by {schedule}, which wait for {waits} (p={self.size}, v={v}, m={m})"


WHOLE = Stage()
"""The one stage of a model that is not divided so."""


def lender(model: ModelConfig) -> int | None:
    """The number of the layer whose encoding weights all others use; `None` where each layer has its own."""
    if not (isinstance(model.encoding, Sharable) and model.encoding.shared_by_layers):
        return None
    encoded = (number for number in range(1, model.num_layers + 1) if number not in model.nope_layers)
    return next(encoded, None)
