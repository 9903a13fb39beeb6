"""A run worked out ahead of it: memory, traffic, operations and time of one rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_mep.attention.choose import Backend, choose
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.nope import Nope
from megatron_mep.model.count import flops_per_token, flops_per_token_of_all_scores, num_parameters
from megatron_mep.model.decode import cache_bytes
from megatron_mep.plan.accelerators import ACCELERATORS, PEAK_FRACTION, Accelerator, Device
from megatron_mep.plan.activations import activations_of
from megatron_mep.plan.communication import Traffic, communication_of
from megatron_mep.plan.memory import Memory, memory_of
from megatron_mep.plan.share import Share
from megatron_mep.preflight import vocabulary_of
from megatron_mep.rules import batches_fit
from megatron_mep.run import RunConfig
from megatron_mep.training.precision import dtype_of


@dataclass(frozen=True)
class Plan:
    """What a run takes. Nothing was run for it."""

    run: str
    share: Share
    accelerator: Accelerator
    attention: Backend
    memory: Memory
    caches: dict[int, int]
    """Bytes of keys and values on a rank, by the length of one sequence that is generated."""
    traffic: Sequence[Traffic]
    num_weights: int
    """Of the whole model."""
    causal_flops: float
    """Per token, forward and backward, of the scores that the mask leaves."""
    all_scores_flops: float
    """The same, of all scores."""
    peak_tflops: float | None
    """Of one device in the training precision; `None` where nobody stated it."""
    peak_source: str
    """Who stated it."""
    peak_fraction: float
    """Share of it that is taken to be reached, by `causal_flops`."""

    @property
    def tokens_per_step(self) -> int:
        """Of all ranks."""
        return self.share.training.global_batch_size * self.share.training.seq_length

    @property
    def step_s(self) -> float | None:
        """Expected time of an optimizer step: an estimate, of the stated share of the peak."""
        if self.peak_tflops is None:
            return None
        rate = self.share.world_size * self.peak_tflops * 1e12 * self.peak_fraction
        return self.causal_flops * self.tokens_per_step / rate

    @property
    def fits(self) -> bool | None:
        """Whether the peak is below the device's memory; `None` where that is not known."""
        if self.accelerator.memory_gb is None:
            return None
        return self.memory.peak < self.accelerator.memory_gb * 1e9


def plan_of(run: RunConfig, world_size: int | None, device: Device, peak_fraction: float = PEAK_FRACTION) -> Plan:
    """The plan of a run on so many ranks; the fewest that its layout allows where `world_size` is `None`."""
    ranks = world_size or run.parallel.model
    vocabulary = vocabulary_of(run)
    mistakes = batches_fit(run, ranks)
    if vocabulary is None:
        mistakes.append(
            Mistake(
                "data.tokenizer",
                run.data.tokenizer.kind,
                "must be known, for the vocabulary is a part of the model",
                "run `mep prepare` first",
            )
        )
    if mistakes or vocabulary is None:
        raise ConfigError(mistakes)
    share, accelerator = Share.of(run, vocabulary, ranks), ACCELERATORS[device]
    encoded, bare = (_backend(run, encoding, accelerator) for encoding in (run.model.encoding, Nope()))
    lengths = run.evaluation.resolved(run.training.seq_length).lengths
    dtype = dtype_of(run.training.precision)
    sizes = run.model, share.vocabulary
    return Plan(
        run=run.name,
        share=share,
        accelerator=accelerator,
        attention=encoded,
        memory=memory_of(share, activations_of(share, encoded, bare, accelerator.device_type)),
        caches={length: cache_bytes(run.model, share.tensor, length, dtype) for length in lengths},
        traffic=communication_of(share),
        num_weights=num_parameters(*sizes),
        causal_flops=flops_per_token(*sizes, run.training.seq_length),
        all_scores_flops=flops_per_token_of_all_scores(*sizes, run.training.seq_length),
        peak_tflops=run.logging.peak_tflops or accelerator.peak_tflops(run.training.precision),
        peak_source="logging.peak_tflops" if run.logging.peak_tflops else accelerator.source,
        peak_fraction=peak_fraction,
    )


def _backend(run: RunConfig, encoding: Encoding, accelerator: Accelerator) -> Backend:
    return choose(
        encoding,
        device_type=accelerator.device_type,
        dtype=dtype_of(run.training.precision),
        head_size=run.model.head_size,
        training=True,
        dropout=run.model.attention_dropout,
        epsilon=run.model.attention_epsilon,
        backend=run.model.attention_backend,
    )
