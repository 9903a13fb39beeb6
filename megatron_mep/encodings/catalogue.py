"""The encodings as text: a table of all, and the whole of one."""

import inspect
from collections.abc import Iterator
from textwrap import indent
from typing import Any

import torch
import yaml
from pydantic import BaseModel

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.config.place import sections_under
from megatron_mep.config.union import OWN, choices, own_class
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
    return (name, _kind_of(kind), kind.formula, str(_learned_per_head(kind(name=name))), kind.source)


def listed() -> str:
    """All encodings, as a table for a terminal."""
    rows = [COLUMNS, *(row_of(kind) for kind in BUILT_IN)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def markdown() -> str:
    """All encodings, as the README's table."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(row_of(kind) for kind in BUILT_IN)]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)


def explained(name: str) -> str:
    """The formula, source and options of one encoding, built in or of the user's own."""
    kind = _kind_named(name)
    told = [f"{name} ({_kind_of(kind)})", "", inspect.cleandoc(kind.__doc__ or "")]
    options = list(_options(kind))
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


def _options(section: type[BaseModel]) -> Iterator[str]:
    """Each option with its default and what it is for, and below it the sections that it may hold."""
    for key, field in section.model_fields.items():
        if key in choices(section):
            continue
        default = "required" if field.is_required() else _in_yaml(field.get_default())
        yield f"{key}: {default}\n    {field.description}"
        for member in sections_under(section, key):
            chosen = ", ".join(f"{chooser}: {' or '.join(tags)}" for chooser, tags in choices(member).items())
            told = [inspect.cleandoc(member.__doc__ or ""), *_options(member)]
            yield indent(f"\n{chosen}\n" + indent("\n".join(told), "    "), "    ")


def _in_yaml(value: Any) -> str:
    """A default as a run file states it, on one line."""
    return yaml.safe_dump(_plain(value), default_flow_style=True, width=1000, sort_keys=False).split("\n")[0]


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        chosen = {chooser: getattr(value, chooser) for chooser in choices(type(value))}
        return chosen | value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _name_of(kind: type[Encoding]) -> str:
    return str(kind.model_fields["name"].default)


def _kind_of(kind: type[Encoding]) -> str:
    return next((told for family, told in KINDS.items() if issubclass(kind, family)), "none")


def _learned_per_head(encoding: Encoding) -> int:
    weights = encoding.layer_weights(LayerSizes(num_heads=1, hidden_size=1, head_size=1), torch.Generator())
    return sum(weight.value.numel() for weight in weights.values() if weight.learned)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
