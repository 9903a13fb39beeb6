"""What one rank has of a run: the sizes that everything else in a plan follows from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from megatron_mep.model.config import ModelConfig
from megatron_mep.model.count import layer_matrices, num_embeddings, num_parameters, padded_vocabulary
from megatron_mep.model.stage import Stage
from megatron_mep.parallel.config import Exchange
from megatron_mep.run import RunConfig
from megatron_mep.training.config import TrainingConfig
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.zero import PERSISTENT


@dataclass(frozen=True)
class Share:
    """The part of one rank; all ranks of a pipeline stage have as much."""

    model: ModelConfig
    training: TrainingConfig
    world_size: int
    tensor: int
    sequence: bool
    context: int
    exchange: Exchange
    """How context ranks, where there are several, bring queries and keys together."""
    stage: Stage
    """Which part of the layers it has."""
    data: int
    vocabulary: int
    """Padded, of the whole model."""

    @classmethod
    def of(cls, run: RunConfig, vocabulary_size: int, world_size: int) -> "Share":
        """The share of a rank of the first stage."""
        parallel = run.parallel
        return cls(
            model=run.model,
            training=run.training,
            world_size=world_size,
            tensor=parallel.tensor,
            sequence=parallel.sequence,
            context=parallel.context,
            exchange=parallel.context_exchange,
            stage=Stage.of(parallel),
            data=parallel.data(world_size),
            vocabulary=padded_vocabulary(vocabulary_size, parallel.tensor),
        )

    def of_all_stages(self) -> Iterator["Share"]:
        """The shares of one rank of every stage, in order."""
        return (replace(self, stage=replace(self.stage, rank=rank)) for rank in range(self.stage.size))

    @property
    def num_layers(self) -> int:
        """Layers that are here."""
        return len(self.stage.layers(self.model))

    @property
    def num_encoded_layers(self) -> int:
        """Those of them in whose attention the encoding acts."""
        return len(set(self.stage.layers(self.model)) - set(self.model.nope_layers))

    @property
    def itemsize(self) -> int:
        """Bytes of a weight or activation in the training precision."""
        return dtype_of(self.training.precision).itemsize

    @property
    def copies(self) -> int:
        """Ranks that hold the same weights, over which ZeRO divides them."""
        return self.data * self.context

    @property
    def num_weights(self) -> int:
        """Trained weights that one rank computes with."""
        return num_parameters(self.model, self.vocabulary, self.tensor, self.stage)

    @property
    def num_fetched(self) -> int:
        """Those in parameters so large that ZeRO 3 gathers them anew for each use."""
        layer = [rows * columns // self.tensor for rows, columns in layer_matrices(self.model)]
        embedding = self.vocabulary * self.model.hidden_size // self.tensor
        parameters = self.num_layers * layer
        parameters += num_embeddings(self.model, self.stage) * [embedding]
        return sum(size for size in parameters if size >= PERSISTENT)

    @property
    def num_partitioned(self) -> int:
        """The part of them whose optimizer state a rank holds under ZeRO 1 and above."""
        return -(-self.num_weights // self.copies)

    @property
    def tokens(self) -> int:
        """Of a micro-batch, those that are here."""
        return self.training.micro_batch_size * self.training.seq_length // self.context

    @property
    def tokens_between(self) -> int:
        """Those of them that a rank holds between the layers that tensor ranks share."""
        return self.tokens // self.tensor if self.sequence else self.tokens

    @property
    def micro_batches(self) -> int:
        """Of a rank in one step."""
        return self.training.global_batch_size // (self.training.micro_batch_size * self.data)

    @property
    def in_flight(self) -> float:
        """Micro-batches that this stage has computed, and those after it not yet given back, at most (1F1B).

        Where stages have several chunks, what a chunk has computed of a micro-batch is that part of one.
        """
        chunks, later = self.stage.num_chunks, self.stage.size - self.stage.rank - 1
        passes = later + 1 if chunks == 1 else 2 * later + (chunks - 1) * self.stage.size + 1
        return min(passes / chunks, self.micro_batches)
