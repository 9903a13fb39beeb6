"""Chunks of a model's layers on one pipeline stage, between two of which lie those of all other stages.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv:2104.04473),
section 2.2 ("interleaved schedule").
"""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor

from megatron_mep.model.encoded_gpt import EncodedGPT


class InterleavedGPT(torch.nn.Module):
    """All that a stage has of a model, as one module for an engine; its chunks are run one at a time."""

    def __init__(self, chunks: Sequence[EncodedGPT]) -> None:
        super().__init__()
        self.chunks = list(chunks)
        """In the order of their layers."""
        for number, chunk in enumerate(chunks):
            self.add_module(_name(number), chunk)

    @property
    def pg_collection(self) -> ProcessGroupCollection:
        """The ranks that share the model."""
        return self.chunks[0].pg_collection

    def forward(self, *args: Any, chunk: int, **options: Any) -> Tensor:
        """What the chunk of this number makes of its input; arguments as an `EncodedGPT`'s."""
        result: Tensor = self.chunks[chunk](*args, **options)
        return result

    def sharded_state_dict(self) -> ShardedStateDict:
        """Megatron-core's, by the names of this module; keys are those of the whole model."""
        return {
            f"{_name(number)}.{name}": entry
            for number, chunk in enumerate(self.chunks)
            for name, entry in chunk.sharded_state_dict().items()
        }


def _name(number: int) -> str:
    return f"chunk_{number}"


StageModel = EncodedGPT | InterleavedGPT
"""What a pipeline stage has of a model."""
