"""The encodings as text: a table of all, and the whole of one."""

import inspect
from textwrap import indent

import torch

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.in_words import markdown_table, options_of, text_table
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.config.union import OWN, own_class
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, LayerSizes, PositionBias, Rotation, ScoreMix

COLUMNS = ("name", "kind", "formula", "learned weights per head", "source")

KINDS: dict[type[Encoding], str] = {
    DistanceBias: "bias by distance",
    PositionBias: "bias by positions",
    KeyBias: "bias by content",
    ScoreMix: "mix of scores",
    Rotation: "rotation",
}


def row_of(kind: type[Encoding]) -> tuple[str, ...]:
    """An encoding's row of the table: name, kind, formula, learned weights per head and layer, source."""
    name = _name_of(kind)
    return (name, _kind_of(kind), kind.formula, str(_learned_per_head(kind(name=name).resolved(1))), kind.source)


def listed() -> str:
    """All encodings, as a table for a terminal."""
    return text_table([COLUMNS, *(row_of(kind) for kind in BUILT_IN)])


def markdown() -> str:
    """All encodings, as the README's table."""
    return markdown_table([COLUMNS, *(row_of(kind) for kind in BUILT_IN)])


def explained(name: str) -> str:
    """The formula, source and options of one encoding, built in or of the user's own."""
    kind = _kind_named(name)
    told = [f"{name} ({_kind_of(kind)})", "", inspect.cleandoc(kind.__doc__ or "")]
    options = list(options_of(kind))
    return "\n".join([*told, "", "Options:", indent("\n".join(options), "  ")] if options else told)


def _kind_named(name: str) -> type[Encoding]:
    by_name = {_name_of(kind): kind for kind in BUILT_IN}
    if ":" not in name and name not in by_name:
        raise ConfigError(Mistake("NAME", name, "is not a known encoding", did_you_mean(name, [*by_name, OWN])))
    try:
        return by_name.get(name) or own_class(name, Encoding)
    except ValueError as error:
        rule, _, remedy = str(error).partition("; ")
        raise ConfigError(Mistake("NAME", name, rule, remedy)) from None


def _name_of(kind: type[Encoding]) -> str:
    return str(kind.model_fields["name"].default)


def _kind_of(kind: type[Encoding]) -> str:
    return next((told for family, told in KINDS.items() if issubclass(kind, family)), "none")


def _learned_per_head(encoding: Encoding) -> int:
    weights = encoding.layer_weights(LayerSizes(num_heads=1, hidden_size=1, head_size=1), torch.Generator())
    return sum(weight.value.numel() for weight in weights.values() if weight.learned)
