"""What an exported model's `config.json`, `generation_config.json` and table of classes say."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from megatron_mep.config.base import Config
from megatron_mep.encodings.placement import Embedded
from megatron_mep.export.vendor import stem_of
from megatron_mep.export.weights import declared, weights_of_layers
from megatron_mep.extrapolation.base import Trick
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.encoded_gpt import EncodedGPT

Json = dict[str, Any]


def configuration_of(
    model: EncodedGPT,
    config: ModelConfig,
    tricks: Sequence[Trick],
    train_length: int,
    vocabulary_size: int,
    eos: int,
) -> Json:
    """`config.json` of a model; `config` is what it was trained with, whose encoding acts under `tricks`."""
    shapes, owners = weights_of_layers(model)
    embedded = isinstance(config.encoding, Embedded)
    return {
        "architectures": ["MepForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_mep.MepConfig",
            "AutoModelForCausalLM": "modeling_mep.MepForCausalLM",
        },
        "model_type": "megatron_mep",
        "dtype": "float32",
        "vocab_size": vocabulary_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.head_size,
        "intermediate_size": config.ffn_size,
        "hidden_act": "silu" if config.activation == "swiglu" else "gelu",
        "norm": config.norm,
        "norm_epsilon": config.norm_epsilon,
        "qk_norm": config.qk_norm,
        "linear_bias": config.linear_bias,
        "tie_word_embeddings": config.tied_embeddings,
        "initializer_range": config.init_std,
        "train_length": train_length,
        "encoding": stated(config.encoding),
        "extrapolation": [stated(trick) for trick in tricks],
        "encoding_weights": shapes,
        "encoding_weights_of": owners,
        "encoding_dtype": "float32",
        "embedding_weights": declared(model.embedding.position_embeddings.encoding_weights) if embedded else {},
        "nope_layers": sorted(set(config.nope_layers)),
        **generation_of(eos),
    }


def generation_of(eos: int) -> Json:
    """`generation_config.json`: sequences end with the token that ends documents, and are padded with it."""
    return {"bos_token_id": None, "eos_token_id": eos, "pad_token_id": eos, "use_cache": True}


def stated(value: Any) -> Any:
    """A value as JSON that `encoding_mep` makes the same value of."""
    if isinstance(value, Config):
        options = {name: stated(option) for name, option in value}
        return {"class": _name_of(type(value)), "options": options}
    if isinstance(value, list | tuple):
        return [stated(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str), f"{value!r} is no option of an encoding"
    return value


def classes_in(values: Iterable[Any]) -> set[type[Config]]:
    """The classes of these values and of all options below them."""
    return {kind for value in values for kind in _classes(value)}


def table_of_classes(classes: Iterable[type[Config]]) -> str:
    """The source of `classes_mep.py`."""
    ordered = sorted(classes, key=_name_of)
    imports = [f"from .{stem_of(kind.__module__)} import {kind.__qualname__} as {_alias(kind)}" for kind in ordered]
    entries = [f'    "{_name_of(kind)}": {_alias(kind)},' for kind in ordered]
    docstring = '"""The classes that the encoding and its tricks are made of, by their names in config.json."""'
    return "\n".join([docstring, "", *imports, "", "CLASSES = {", *entries, "}", ""])


def _classes(value: Any) -> Iterator[type[Config]]:
    if isinstance(value, Config):
        yield type(value)
        for _, option in value:
            yield from _classes(option)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _classes(item)


def _name_of(kind: type[Config]) -> str:
    return f"{stem_of(kind.__module__)}.{kind.__qualname__}"


def _alias(kind: type[Config]) -> str:
    return _name_of(kind).replace(".", "_")
