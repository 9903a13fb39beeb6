"""Seeds that follow from a run's seed and a number alone: what they draw is the same at every layout."""

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What is drawn, so that nothing is drawn alike that has the same number."""

    ENCODING = 0
    """The initial weights of an encoding, by layer; number 0 is that of the embeddings."""
    LAYER = 1
    """The initial matrices of a layer, by layer."""
    PLACES = 2
    """Where an encoding puts the tokens of a micro-batch, by its first sample."""
    DROPOUT = 3
    """What training drops, by the number of a rank's stream; what follows from it by Megatron-core is near by."""


def seed_for(purpose: Purpose, seed: int, number: int) -> int:
    """A seed unlike that of any other purpose, run or number."""
    mixed = np.random.SeedSequence((seed, number, purpose)).generate_state(1, np.uint64)
    # Megatron-core adds to it, and 64 bits are all that a generator takes
    return int(mixed[0] >> np.uint64(1))


def generator_of(seed: int, layer_number: int) -> torch.Generator:
    """The stream of a layer's encoding; number 0 is that of the embeddings."""
    return torch.Generator().manual_seed(seed_for(Purpose.ENCODING, seed, layer_number))
