"""Weights that several pipeline stages hold: tied embeddings, and those of an encoding that all layers share.

Each stage gives a part of their gradient. The first of the stages keeps them in checkpoints, under one name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from torch import nn
from torch.distributed import ProcessGroup

from megatron_mep.model.core_attention import encoded_layers

if TYPE_CHECKING:
    from megatron_mep.model.encoded_gpt import EncodedGPT

ENCODING_WEIGHTS = "self_attention.core_attention.encoding_weights."


@dataclass(frozen=True)
class Copy:
    """A weight that this stage and others hold."""

    name: str
    """The same on all of them."""
    parameter: nn.Parameter
    group: ProcessGroup
    """Who holds it, stage by stage."""


def copies_of(model: "EncodedGPT") -> Iterator[Copy]:
    """The weights of this stage that others hold too, in the same order on each of them."""
    stages = model.pg_collection.pp
    if stages.size() == 1:
        return
    if model.share_embeddings_and_output_weights and (model.pre_process or model.post_process):
        weight = model.shared_embedding_or_output_weight()
        yield Copy("embedding.word_embeddings.weight", weight, model.pg_collection.embd)
    if model.lender is not None:
        own = next(layer for layer in encoded_layers(model) if layer.encoding == model.encoding)
        assert own.encoding_weights is not None, "the first layer of a stage lends to the others"
        for name, weight in own.encoding_weights.named_parameters():
            yield Copy(f"{_layer(model.lender)}{ENCODING_WEIGHTS}{name}", weight, stages)


def name_copies(entries: ShardedStateDict, model: "EncodedGPT") -> None:
    """Gives the shared weights of a later stage the key that they have on the first, as copies of those there.

    Megatron-core does so for tied embeddings.
    """
    stage = model.pg_collection.pp.rank()
    if model.lender is None or stage == 0:
        return
    own = next(layer.layer_number for layer in encoded_layers(model) if layer.encoding == model.encoding)
    for entry in entries.values():
        here = f"{_layer(own)}{ENCODING_WEIGHTS}"
        if entry is not None and entry.key.startswith(here):
            entry.key = f"{_layer(model.lender)}{ENCODING_WEIGHTS}{entry.key.removeprefix(here)}"
            entry.replica_id = (stage, *entry.replica_id[1:])


def _layer(number: int) -> str:
    return f"decoder.layers.{number - 1}."
