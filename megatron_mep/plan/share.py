"""What one rank has of a run: the sizes that everything else in a plan follows from."""

from dataclasses import dataclass

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.count import layer_matrices, num_parameters, padded_vocabulary
from megatron_mep.run import RunConfig
from megatron_mep.training.config import TrainingConfig
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.zero import PERSISTENT


@dataclass(frozen=True)
class Share:
    """The part of one rank; all ranks have as much."""

    model: ModelConfig
    training: TrainingConfig
    world_size: int
    tensor: int
    sequence: bool
    data: int
    vocabulary: int
    """Padded, of the whole model."""

    @classmethod
    def of(cls, run: RunConfig, vocabulary_size: int, world_size: int) -> "Share":
        """The share of a run on so many ranks; a `ConfigError` where an axis is not planned for."""
        parallel = run.parallel
        axes = {"context": parallel.context, "pipeline": parallel.pipeline}
        rule, remedy = "is not reckoned with by `mep plan` yet", "set it to 1 here; `mep check` takes it"
        mistakes = [Mistake(f"parallel.{axis}", size, rule, remedy) for axis, size in axes.items() if size > 1]
        if mistakes:
            raise ConfigError(mistakes)
        return cls(
            model=run.model,
            training=run.training,
            world_size=world_size,
            tensor=parallel.tensor,
            sequence=parallel.sequence,
            data=parallel.data(world_size),
            vocabulary=padded_vocabulary(vocabulary_size, parallel.tensor),
        )

    @property
    def itemsize(self) -> int:
        """Bytes of a weight or activation in the training precision."""
        return dtype_of(self.training.precision).itemsize

    @property
    def num_weights(self) -> int:
        """Trained weights that one rank computes with."""
        return num_parameters(self.model, self.vocabulary, self.tensor)

    @property
    def num_fetched(self) -> int:
        """Those in parameters so large that ZeRO 3 gathers them anew for each use."""
        layer = [rows * columns // self.tensor for rows, columns in layer_matrices(self.model)]
        embedding = self.vocabulary * self.model.hidden_size // self.tensor
        parameters = self.model.num_layers * layer + (1 if self.model.tied_embeddings else 2) * [embedding]
        return sum(size for size in parameters if size >= PERSISTENT)

    @property
    def num_partitioned(self) -> int:
        """The part of them whose optimizer state a rank holds under ZeRO 1 and above."""
        return -(-self.num_weights // self.data)

    @property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.training.micro_batch_size * self.training.seq_length

    @property
    def tokens_between(self) -> int:
        """Those of a micro-batch that a rank holds between the layers that tensor ranks share."""
        return self.tokens // self.tensor if self.sequence else self.tokens

    @property
    def micro_batches(self) -> int:
        """Of a rank in one step."""
        return self.training.global_batch_size // (self.training.micro_batch_size * self.data)
