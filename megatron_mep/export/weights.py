"""A model's weights under the names that an exported model has for them."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from megatron_mep.model.config import ModelConfig
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.parallel.tensor import EncodingWeights

ENCODING = "encoding_weights."
IN_LAYER = {
    "input_layernorm": "input_layernorm",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
    "self_attention.linear_proj": "self_attn.o_proj",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc1": "mlp.up_proj",
    "mlp.linear_fc2": "mlp.down_proj",
}
"""What stays one tensor in a layer, under its new name."""


def exported_weights(model: EncodedGPT, config: ModelConfig, vocabulary_size: int) -> dict[str, Tensor]:
    """The weights of a whole model, by their new names, without the rows that pad the vocabulary."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    found = {
        # safetensors writes no part of a tensor without the whole
        new: value.contiguous() if value.untyped_storage().nbytes() == value.nbytes else value.clone()
        for name, tensor in state.items()
        for new, value in _renamed(name, tensor.detach().cpu(), config, vocabulary_size)
    }
    return dict(sorted(found.items()))


def declared(weights: EncodingWeights | None) -> dict[str, dict[str, Any]]:
    """What an exported configuration says of an encoding's weights: their shapes, and which are trained."""
    if weights is None:
        return {}
    learned = {name for name, _ in weights.named_parameters()}
    return {
        name: {"shape": list(tensor.shape), "learned": name in learned}
        for name, tensor in (*weights.named_parameters(), *weights.named_buffers())
    }


def weights_of_layers(model: EncodedGPT) -> tuple[dict[str, dict[str, Any]], list[int | None]]:
    """The encoding's weights in one layer, and for each layer the one whose weights it uses."""
    shapes: dict[str, dict[str, Any]] = {}
    owners: list[int | None] = []
    for layer in encoded_layers(model):
        own = declared(layer.encoding_weights)
        shapes = shapes or own
        owner = layer.layer_number if layer.encoding_weights is not None else model.lender
        owners.append(owner if own or layer.encoding_weights is None else None)
    return shapes, owners


def _renamed(name: str, tensor: Tensor, config: ModelConfig, vocabulary_size: int) -> Iterator[tuple[str, Tensor]]:
    match name.split("."):
        case ["embedding", "word_embeddings", "weight"]:
            yield "model.embed_tokens.weight", tensor[:vocabulary_size]
        case ["output_layer", "weight"]:
            if not config.tied_embeddings:
                yield "lm_head.weight", tensor[:vocabulary_size]
        case ["embedding", "position_embeddings", "encoding_weights", weight]:
            yield f"model.{ENCODING}{weight}", tensor
        case ["decoder", "final_layernorm", kind]:
            yield f"model.norm.{kind}", tensor
        case ["decoder", "layers", index, *rest]:
            for new, value in _of_layer(rest, tensor, config):
                yield f"model.layers.{index}.{new}", value
        case _:
            raise AssertionError(f"{name} has no place in an exported model")


def _of_layer(name: list[str], tensor: Tensor, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    *path, kind = name
    match path:
        case ["self_attention", "core_attention", "encoding_weights"]:
            yield f"self_attn.{ENCODING}{kind}", tensor
        case ["self_attention", "linear_qkv"]:
            yield from _apart(kind, tensor, config)
        case ["mlp", "linear_fc1"] if config.activation == "swiglu":
            # the gate is what the activation is applied to, Megatron-core's first half
            for part, value in zip(("gate", "up"), tensor.chunk(2), strict=True):
                yield f"mlp.{part}_proj.{kind}", value
        case _:
            yield f"{IN_LAYER['.'.join(path)]}.{kind}", tensor


def _apart(kind: str, tensor: Tensor, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Queries, keys and values, of which Megatron-core stacks those of each group: its queries, a key, a value."""
    of_group = config.num_attention_heads // config.groups
    by_group = tensor.unflatten(0, (config.groups, of_group + 2, config.head_size))
    query, key, value = by_group.split([of_group, 1, 1], dim=1)
    for letter, heads in (("q", query), ("k", key), ("v", value)):
        yield f"self_attn.{letter}_proj.{kind}", heads.flatten(0, 2)
