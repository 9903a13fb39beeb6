"""A run worked out ahead of it: memory, traffic, operations and time of one rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_mep.attention.backend import Backend
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.nope import Nope
from megatron_mep.model.count import flops_per_token, flops_per_token_of_all_scores, num_parameters
from megatron_mep.model.decode import cache_bytes
from megatron_mep.model.exchange import attention_backend
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
    """That of the stage whose ranks need the most memory, which all but the traffic is told of."""
    accelerator: Accelerator
    attention: Backend
    memory: Memory
    stage_peaks: Sequence[int]
    """The most bytes at any time on a rank of each pipeline stage."""
    caches: dict[int, int]
    """Bytes of keys and values on a rank, by the length of one sequence that is generated."""
    traffic: Sequence[Traffic]
    traffic_stage: int
    """The stage whose ranks send the most: `traffic` is theirs."""
    num_weights: int
    """Of the whole model."""
    causal_flops: float
    """Per token, forward and backward, of the scores that the mask leaves."""
    all_scores_flops: float
    """The same, of all scores."""
    stage_flops: Sequence[float]
    """What each stage has of `causal_flops`."""
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
    def bubble(self) -> float:
        """Share of a step in which a pipeline stage waits."""
        return self.share.stage.waiting(self.share.micro_batches)

    @property
    def step_s(self) -> float | None:
        """Expected time of an optimizer step: an estimate, of the stated share of the peak.

        The first micro-batch goes through all stages, and the others follow at the pace of the slowest; where stages
        have several chunks, they wait for a first chunk of the stages before them.
        """
        if self.peak_tflops is None:
            return None
        share = self.share
        rate = share.tensor * share.context * self.peak_tflops * 1e12 * self.peak_fraction
        slowest = max(self.stage_flops)
        in_turn = (sum(self.stage_flops) - slowest) / share.stage.num_chunks + share.micro_batches * slowest
        return in_turn * share.training.micro_batch_size * share.training.seq_length / rate

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
    shares, accelerator = list(Share.of(run, vocabulary, ranks).of_all_stages()), ACCELERATORS[device]
    dtype = dtype_of(run.training.precision)
    encoded, bare = (
        attention_backend(run.model, encoding, run.parallel, dtype, training=True, device_type=accelerator.device_type)
        for encoding in (run.model.encoding, Nope())
    )
    memories = [memory_of(each, activations_of(each, encoded, bare, accelerator.device_type)) for each in shares]
    memory = max(memories, key=lambda each: each.peak)
    traffic = [communication_of(each) for each in shares]
    busiest = max(range(len(shares)), key=lambda stage: sum(each.sent for each in traffic[stage]))
    share = shares[memories.index(memory)]
    lengths = run.evaluation.resolved(run.training.seq_length).lengths
    sizes = run.model, share.vocabulary
    length = run.training.seq_length
    return Plan(
        run=run.name,
        share=share,
        accelerator=accelerator,
        attention=encoded,
        memory=memory,
        stage_peaks=[each.peak for each in memories],
        caches={each: cache_bytes(run.model, share.tensor, each, dtype) for each in lengths},
        traffic=traffic[busiest],
        traffic_stage=busiest,
        num_weights=num_parameters(*sizes),
        causal_flops=flops_per_token(*sizes, length),
        all_scores_flops=flops_per_token_of_all_scores(*sizes, length),
        stage_flops=[flops_per_token(*sizes, length, each.stage) for each in shares],
        peak_tflops=run.logging.peak_tflops or accelerator.peak_tflops(run.training.precision),
        peak_source="logging.peak_tflops" if run.logging.peak_tflops else accelerator.source,
        peak_fraction=peak_fraction,
    )
