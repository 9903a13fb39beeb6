"""Weights that several pipeline stages hold: tied embeddings, and those of an encoding that all layers share.

Each stage gives a part of their gradient. The first of the stages keeps them in checkpoints, under one name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from torch import nn
from torch.distributed import ProcessGroup

from megatron_mep.model.core_attention import EncodedAttention, encoded_layers
from megatron_mep.model.stage import ENCODING_WEIGHTS

if TYPE_CHECKING:
    from megatron_mep.model.encoded_gpt import EncodedGPT
    from megatron_mep.model.interleaved import StageModel


@dataclass(frozen=True)
class Copy:
    """A weight that this stage and others hold."""

    name: str
    """The same on all of them."""
    parameter: nn.Parameter
    group: ProcessGroup
    """Who holds it, stage by stage."""


def copies_of(model: "StageModel") -> Iterator[Copy]:
    """The weights of this stage that others hold too, in the same order on each of them."""
    stages = model.pg_collection.pp
    if stages.size() == 1:
        return
    for chunk in model.chunks:
        if chunk.share_embeddings_and_output_weights and (chunk.pre_process or chunk.post_process):
            weight = chunk.shared_embedding_or_output_weight()
            yield Copy("embedding.word_embeddings.weight", weight, model.pg_collection.embd)
    for chunk in model.chunks:
        for layer in _lending(chunk):
            assert layer.encoding_weights is not None, "it borrows none"
            for name, weight in layer.encoding_weights.named_parameters():
                yield Copy(f"{_layer(chunk.lender)}{ENCODING_WEIGHTS}{name}", weight, stages)


def share_encoding_weights(model: "StageModel") -> None:
    """Lets the first layer of a stage lend its encoding weights to all others there, where all layers share them."""
    lends, *borrowers = chain.from_iterable(map(_lending, model.chunks))
    for layer in borrowers:
        layer.borrow_weights(lends)


def name_copies(entries: ShardedStateDict, model: "EncodedGPT") -> None:
    """Gives the shared weights of a later stage the key that they have on the first, as copies of those there.

    Megatron-core does so for tied embeddings.
    """
    stage = model.pg_collection.pp.rank()
    if stage == 0:
        return
    for layer in _lending(model):
        here = f"{_layer(layer.layer_number)}{ENCODING_WEIGHTS}"
        for entry in entries.values():
            if entry is not None and entry.key.startswith(here):
                entry.key = f"{_layer(model.lender)}{ENCODING_WEIGHTS}{entry.key.removeprefix(here)}"
                entry.replica_id = (stage, *entry.replica_id[1:])


def _lending(model: "EncodedGPT") -> Iterator[EncodedAttention]:
    """The layers that hold what all layers share: each of them until it borrows, then one of a stage."""
    if model.lender is not None:
        for layer in encoded_layers(model):
            if layer.encoding == model.encoding and layer.encoding_weights is not None:
                yield layer


def _layer(number: int | None) -> str:
    assert number is not None, "layers share weights"
    return f"decoder.layers.{number - 1}."
