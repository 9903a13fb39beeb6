"""The `training` section of a run file: how the weights are found."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from megatron_mep.config.base import Config


class Warmup(Config):
    """What every schedule shares: a linear rise from 0."""

    name: str
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises linearly to `optimizer.learning_rate`."""


class Constant(Warmup):
    """After the warm-up, the learning rate stays."""

    name: Literal["constant"] = "constant"


class Decaying(Warmup):
    """What every schedule shares that falls."""

    min_learning_rate: NonNegativeFloat = 0.0
    """Where the learning rate ends, at the last step."""


class Cosine(Decaying):
    """After the warm-up, half a cosine down to `min_learning_rate`."""

    name: Literal["cosine"] = "cosine"


class Linear(Decaying):
    """After the warm-up, a line down to `min_learning_rate`."""

    name: Literal["linear"] = "linear"


class WarmupStableDecay(Decaying):
    """After the warm-up constant, then down to `min_learning_rate` over the last `decay_steps` (WSD)."""

    name: Literal["wsd"] = "wsd"
    decay_steps: PositiveInt
    """Steps of the final decay."""
    decay: Literal["linear", "cosine", "exponential", "minus_sqrt"] = "linear"
    """The shape of the final decay."""


AnySchedule = Annotated[Constant | Cosine | Linear | WarmupStableDecay, Field(discriminator="name")]


class OptimizerConfig(Config):
    """AdamW; no weight decay on norms, biases and encoding weights."""

    learning_rate: PositiveFloat
    """The highest learning rate of the schedule."""
    encoding_learning_rate: PositiveFloat | None = None
    """The same for the encoding's learned weights, falling by the same factor; `learning_rate` where absent."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of Adam's running mean and mean square."""
    epsilon: PositiveFloat = 1e-8
    """Added to Adam's denominator."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled weight decay of the matrices."""
    clip_grad_norm: NonNegativeFloat = 1.0
    """Largest norm of the gradient of all weights; 0 leaves it as it is."""


class NonFiniteConfig(Config):
    """A step whose loss or gradient norm is NaN or infinite is skipped: nothing but its batch and its rate is spent."""

    max_consecutive: PositiveInt = 10
    """Skipped steps in a row, for whatever reason, that end the run."""


class SpikeConfig(Config):
    """Tells the steps whose loss lies far above those before."""

    window: int = Field(128, ge=8)
    """Steps whose losses are compared with, spikes included; the watch begins when half of them are there."""
    deviations: PositiveFloat = 8.0
    """Distance above their median at which a loss is a spike, in standard deviations as their median absolute deviation
    shows them, of 0.1 % of the median at least."""
    skip: bool = False
    """Skips the step of a spike, as one that is not finite."""


class TrainingConfig(Config):
    """Length, batch, steps, precision and optimizer."""

    seq_length: int = Field(gt=1)
    """Tokens of a training sequence, L."""
    steps: PositiveInt
    """Optimizer steps of the whole run."""
    micro_batch_size: PositiveInt = 1
    """Sequences of one forward pass on one data-parallel rank."""
    global_batch_size: PositiveInt
    """Sequences of one optimizer step, on all ranks; a multiple of micro_batch_size times the data-parallel size."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Type of weights and activations; master weights, moments, accumulated gradients and encoding weights are fp32."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    """What ZeRO partitions over data-parallel ranks: 1 the optimizer's state, 2 gradients too, 3 weights too."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations computed again in the backward pass: none, those of core attention, or all of a layer."""
    optimizer: OptimizerConfig
    """Learning rates, moments, weight decay and clipping."""
    schedule: AnySchedule = Cosine()
    """The learning rate's course over the steps."""
    non_finite: NonFiniteConfig = NonFiniteConfig()
    """What becomes of steps with numbers that are not finite."""
    spike: SpikeConfig = SpikeConfig()
    """What becomes of steps whose loss is out of line."""

    @field_validator("precision", mode="before")
    @classmethod
    def _no_fp16(cls, precision: object) -> object:
        if precision == "fp16":
            raise PydanticCustomError(
                "fp16",
                "must be bf16 or fp32: fp16 needs the loss to be scaled, which is not offered, and DeepSpeed refuses "
                "it on a CPU",
            )
        return precision


class LoggingConfig(Config):
    """What a run tells while it goes on."""

    interval: PositiveInt = 10
    """Steps between two lines of progress and two points in TensorBoard and metrics.jsonl; a validation, a skipped step
    and a spike add one."""
    tensorboard: bool = True
    """Writes TensorBoard events into the run's folder."""
    peak_tflops: PositiveFloat | None = None
    """Peak rate of one device in the training precision, TFLOP/s; where stated, model FLOPs utilization is logged."""
