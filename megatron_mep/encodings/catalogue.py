"""The encodings as text: a table of all, and the whole of one."""

import inspect
from collections.abc import Iterator

import torch

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.explain import did_you_mean
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.base import DistanceBias, Encoding, Rotation

COLUMNS = ("name", "kind", "formula", "learned weights per head", "source")


def row_of(kind: type[Encoding]) -> tuple[str, ...]:
    """An encoding's row of the table: name, kind, formula, learned weights per head and layer, source."""
    return (_name_of(kind), _kind_of(kind), kind.formula, str(_learned_per_head(kind())), kind.source)


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
    """The formula, source and options of one encoding."""
    by_name = {_name_of(kind): kind for kind in BUILT_IN}
    if name not in by_name:
        raise ConfigError(Mistake("NAME", name, "is not a known encoding", did_you_mean(name, list(by_name))))
    return "\n".join([f"{name} ({_kind_of(by_name[name])})", "", *_described(by_name[name])])


def _described(kind: type[Encoding]) -> Iterator[str]:
    yield inspect.cleandoc(kind.__doc__ or "")
    options = {key: field for key, field in kind.model_fields.items() if key != "name"}
    if options:
        yield "\nOptions:"
    for key, field in options.items():
        yield f"  {key} = {field.get_default()!r}\n      {field.description}"


def _name_of(kind: type[Encoding]) -> str:
    return str(kind.model_fields["name"].default)


def _kind_of(kind: type[Encoding]) -> str:
    if issubclass(kind, DistanceBias):
        return "bias by distance"
    return "rotation" if issubclass(kind, Rotation) else "none"


def _learned_per_head(encoding: Encoding) -> int:
    weights = encoding.weights(1, torch.Generator())
    return sum(weight.value.numel() for weight in weights.values() if weight.learned)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
