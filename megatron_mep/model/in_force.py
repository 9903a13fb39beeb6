"""What acts in each layer of a built model: its encoding, the attention backend, the learned weights."""

from collections.abc import Iterator
from itertools import groupby

from torch import nn

from megatron_mep.model.core_attention import EncodedAttention
from megatron_mep.model.encoded_gpt import AddedVectors


def encoded_layers(model: nn.Module) -> Iterator[EncodedAttention]:
    """The core attention of every layer, in order."""
    return (module for module in model.modules() if isinstance(module, EncodedAttention))


def in_force(model: nn.Module) -> str:
    """A line for what is added to embeddings, and one for each run of layers that compute attention alike."""
    lines = [f"embeddings: {module.in_force}" for module in model.modules() if isinstance(module, AddedVectors)]
    for told, layers in groupby(encoded_layers(model), key=lambda layer: layer.in_force):
        numbers = [layer.layer_number for layer in layers]
        lines.append(f"layers {numbers[0]}-{numbers[-1]}: {told}")
    return "\n".join(lines)


def backends_in_force(model: nn.Module) -> str:
    """The attention backends of all layers, each named once."""
    return ", ".join(dict.fromkeys(layer.backend.name for layer in encoded_layers(model)))


def learned_encoding_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained weights of every layer's encoding, as `layer_03/slope_0`."""
    return {
        f"layer_{layer.layer_number:02d}/{name}": weight
        for layer in encoded_layers(model)
        if layer.encoding_weights is not None
        for name, weight in layer.encoding_weights.named_parameters()
    }
