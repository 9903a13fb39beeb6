"""Sections of a run file as text: their options, and tables of them for a terminal and for Markdown."""

import inspect
from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import Any

import yaml
from pydantic import BaseModel

from megatron_mep.config.base import Config
from megatron_mep.config.place import sections_under
from megatron_mep.config.union import choices


def options_of(section: type[BaseModel]) -> Iterator[str]:
    """Each option with its default and what it is for, and below it the sections that it may hold."""
    for key, field in section.model_fields.items():
        if key in choices(section):
            continue
        default = "required" if field.is_required() else _in_yaml(field.get_default())
        yield f"{key}: {default}\n    {field.description}"
        for member in sections_under(section, key):
            chosen = ", ".join(f"{chooser}: {' or '.join(tags)}" for chooser, tags in choices(member).items())
            told = [inspect.cleandoc(member.__doc__ or ""), *options_of(member)]
            yield indent(f"\n{chosen}\n" + indent("\n".join(told), "    "), "    ")


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the first of which is the head, in columns for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _in_yaml(value: Any) -> str:
    """A default as a run file states it, on one line."""
    return yaml.safe_dump(_plain(value), default_flow_style=True, width=1000, sort_keys=False).split("\n")[0]


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        chosen = {chooser: getattr(value, chooser) for chooser in choices(type(value))}
        return chosen | value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
