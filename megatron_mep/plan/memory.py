"""Bytes of weights, gradients and optimizer on a rank, as DeepSpeed's ZeRO holds them, and the peak of a step.

How much a ZeRO stage allocates was read off the allocator while each stage trained, in fp32 and bf16, alone and on two
data-parallel ranks: not its published formula, for its buckets and copies take as much as what it partitions.
"""

from dataclasses import dataclass

from megatron_mep.plan.activations import Activations
from megatron_mep.plan.attention import WIDE
from megatron_mep.plan.share import Share
from megatron_mep.training.zero import LARGEST_BUCKET, MOST_LIVE, MOST_PREFETCHED


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank."""

    weights: int
    """In the training precision; the part of this rank under ZeRO 3."""
    optimizer: int
    """Moments, and fp32 master weights under ZeRO."""
    gradients: int
    """Accumulated in fp32 over micro-batches; they are freed when the weights are updated."""
    gathered: int
    """Weights of other ranks that ZeRO 3 brings here while it computes."""
    bucket: int
    """Where gradients are gathered for one reduction."""
    activations: Activations
    pass_peak: int
    """The most during forward and backward passes."""
    step_peak: int
    """The most while gradients are reduced and weights updated."""

    @property
    def peak(self) -> int:
        """The most at any time."""
        return max(self.pass_peak, self.step_peak)


def memory_of(share: Share, activations: Activations) -> Memory:
    """The memory of a rank that trains; what a process needs for itself, as for libraries and drivers, is apart."""
    stage, itemsize = share.training.zero_stage, share.itemsize
    all_weights, part = share.num_weights, share.num_partitioned
    several, narrow = share.micro_batches > 1, itemsize < WIDE
    # stage 2 gathers gradients in their own type, and widens them for the reduction
    reduced = min(LARGEST_BUCKET, all_weights)
    bucket = (itemsize if stage == 2 else WIDE) * reduced
    full, mine = WIDE * all_weights, WIDE * part
    weights, optimizer, gradients, gathered = itemsize * all_weights, 3 * mine, full, 0
    if stage == 0:
        # one copy of what is reduced in one go
        optimizer = 2 * full
        passes, step = max(activations.peak + several * full, full), full + bucket
    elif stage == 1:
        passes = max(activations.peak + bucket + several * full, full + bucket)
        step = max(full + bucket + narrow * mine, (3 if narrow else 4) * mine)
    elif stage == 2:
        gradients = mine
        passes = max(activations.peak + bucket + several * mine, 2 * WIDE * reduced + (several or narrow) * mine)
        step = (3 if narrow else 4) * mine
    else:
        weights, gradients = itemsize * part, mine
        if share.copies > 1:
            # those that are fetched ahead lie side by side first, and then each by itself
            gathered = itemsize * (min(all_weights, MOST_LIVE) + min(share.num_fetched, MOST_PREFETCHED))
        # its gradients and its bucket are there from the start
        standing = mine + bucket
        passes = standing + gathered + max(activations.peak, 2 * bucket)
        step = standing + 3 * WIDE * min(part, MOST_LIVE)
    return Memory(
        weights=weights,
        optimizer=optimizer,
        gradients=gradients,
        gathered=gathered,
        bucket=bucket,
        activations=activations,
        pass_peak=weights + optimizer + passes,
        step_peak=weights + optimizer + step,
    )
