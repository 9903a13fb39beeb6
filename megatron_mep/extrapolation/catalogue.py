"""The length tricks as text: a table of all, and the whole of one."""

import inspect
from collections.abc import Iterator
from textwrap import indent

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.in_words import markdown_table, options_of, text_table
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.encodings import BUILT_IN
from megatron_mep.extrapolation import TRICKS, could_act
from megatron_mep.extrapolation.base import Trick

COLUMNS = ("name", "formula", "source")


def row_of(trick: type[Trick]) -> tuple[str, ...]:
    """A trick's row of the table."""
    return (trick_name(trick), trick.formula, trick.source)


def listed() -> str:
    """All tricks, as a table for a terminal."""
    return text_table([COLUMNS, *map(row_of, TRICKS)])


def markdown() -> str:
    """All tricks, as the README's table."""
    return markdown_table([COLUMNS, *map(row_of, TRICKS)])


def explained(name: str) -> str:
    """The formula, source and options of one trick, and which encodings it acts on."""
    by_name = {trick_name(trick): trick for trick in TRICKS}
    if name not in by_name:
        raise ConfigError(Mistake("NAME", name, "is not a known trick", did_you_mean(name, list(by_name))))
    trick = by_name[name]
    told = [name, "", inspect.cleandoc(trick.__doc__ or ""), "", f"Acts on: {', '.join(encodings_of(trick))}"]
    options = list(options_of(trick))
    return "\n".join([*told, "", "Options:", indent("\n".join(options), "  ")] if options else told)


def encodings_of(trick: type[Trick]) -> Iterator[str]:
    """The encodings of this package, as they are by default, that a trick can act on."""
    for kind in BUILT_IN:
        encoding = kind(name=kind.model_fields["name"].default).resolved(1)
        if could_act(trick, encoding):
            yield encoding.name


def trick_name(trick: type[Trick]) -> str:
    """What a run file calls it."""
    return str(trick.model_fields["name"].default)
