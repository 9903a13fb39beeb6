"""What acts in each layer of a built model: its encoding, the attention backend, the learned weights."""

from itertools import chain, groupby
from typing import TypeVar

from torch import distributed, nn

from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.encoded_gpt import AddedVectors
from megatron_mep.model.interleaved import StageModel
from megatron_mep.parallel.gradients import is_copy

Told = TypeVar("Told")


def in_force(model: StageModel) -> str:
    """A line for what is added to embeddings, and one for each run of layers that compute attention alike.

    Collective over pipeline stages.
    """
    here = [f"embeddings: {module.in_force}" for module in model.modules() if isinstance(module, AddedVectors)]
    lines = _of_all_stages(model, here)
    told = sorted(_of_all_stages(model, [(layer.layer_number, layer.in_force) for layer in encoded_layers(model)]))
    for in_words, layers in groupby(told, key=lambda layer: layer[1]):
        numbers = [number for number, _ in layers]
        lines.append(f"layers {numbers[0]}-{numbers[-1]}: {in_words}")
    return "\n".join(lines)


def backends_in_force(model: StageModel) -> str:
    """The attention backends of all layers, each named once. Collective over pipeline stages."""
    return ", ".join(dict.fromkeys(_of_all_stages(model, [layer.backend.name for layer in encoded_layers(model)])))


def learned_encoding_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained weights of the encoding in every layer of this stage, as `layer_03/slope_0`."""
    return {
        f"layer_{layer.layer_number:02d}/{name}": weight
        for layer in encoded_layers(model)
        if layer.encoding_weights is not None
        for name, weight in layer.encoding_weights.named_parameters()
        if not is_copy(weight)
    }


def _of_all_stages(model: StageModel, told: list[Told]) -> list[Told]:
    """What every stage tells, in their order."""
    stages = model.pg_collection.pp
    everyone: list[list[Told]] = [told] * stages.size()
    if stages.size() > 1:
        distributed.all_gather_object(everyone, told, stages)
    return list(chain.from_iterable(everyone))
