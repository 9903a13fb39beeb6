"""The encodings as text: a table of all, the whole of one, and its matrix."""

import inspect
import math
from collections.abc import Iterable, Iterator
from textwrap import indent

import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.attention.rows import ROWS
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.explain import explain
from megatron_mep.config.in_words import markdown_table, options_of, text_table
from megatron_mep.config.loader import apply_overrides
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.config.union import OWN, own_class
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.base import (
    DistanceBias,
    Encoding,
    KeyBias,
    LayerSizes,
    PairScores,
    PositionBias,
    Rotation,
    ScoreMix,
    Weight,
)
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.effect import effect, meaning
from megatron_mep.encodings.placement import Embedded, Placed

COLUMNS = ("name", "kind", "formula", "learned weights per head", "needs", "backends", "source")
HEAD_SIZE, HIDDEN_SIZE, MANY_HEADS = 64, 768, 12
"""The sizes at which weights are counted."""
MOST_PRINTED, MOST_DRAWN = 2**24, 2**28
"""Numbers that a matrix and a figure may take."""
TRAIN_LENGTH = 512
"""That of an encoding which is shown outside a run."""

KINDS: dict[type, tuple[str, str]] = {
    DistanceBias: ("bias by distance", "distances"),
    PositionBias: ("bias by positions", "positions"),
    KeyBias: ("bias by content", "hidden states"),
    ScoreMix: ("mix of scores", "scores"),
    PairScores: ("scores of pairs", "queries and keys"),
    Rotation: ("rotation", "positions"),
    Carried: ("states", "states of the layer before"),
    Embedded: ("embedding", "positions"),
}
"""What kinds are called in tables, and what their formulas read."""


def row_of(kind: type[Encoding]) -> tuple[str, ...]:
    """An encoding's row of the table, as it is by default."""
    encoding = _default(kind)
    return (
        encoding.name,
        _kind_of(kind),
        kind.formula,
        _learned(encoding),
        ", ".join(dict.fromkeys(_needs(encoding))) or "nothing",
        ", ".join(row.name for row in ROWS if row.automatic and row.knows(encoding)),
        kind.source,
    )


def listed() -> str:
    """All encodings by name, as a table for a terminal."""
    return text_table([COLUMNS, *sorted(map(row_of, BUILT_IN))])


def markdown() -> str:
    """All encodings by name, as the README's table."""
    return markdown_table([COLUMNS, *sorted(map(row_of, BUILT_IN))])


def explained(name: str) -> str:
    """The formula, source and options of one encoding, built in or of the user's own."""
    kind = kind_named(name)
    told = [f"{name} ({_kind_of(kind)})", "", kind.formula, "", inspect.cleandoc(kind.__doc__ or "")]
    options = list(options_of(kind))
    return "\n".join([*told, "", "Options:", indent("\n".join(options), "  ")] if options else told)


def kind_named(name: str) -> type[Encoding]:
    """The class of an encoding, built in or of the user's own."""
    by_name = {_name_of(kind): kind for kind in BUILT_IN}
    if ":" not in name and name not in by_name:
        raise ConfigError(Mistake("NAME", name, "is not a known encoding", did_you_mean(name, [*by_name, OWN])))
    try:
        return by_name.get(name) or own_class(name, Encoding)
    except ValueError as error:
        rule, _, remedy = str(error).partition("; ")
        raise ConfigError(Mistake("NAME", name, rule, remedy)) from None


def stated(name: str, options: Iterable[str]) -> Encoding:
    """An encoding with options `key=value`, nothing left open."""
    if not name:
        raise ConfigError(Mistake("NAME", None, "is missing", "say which encoding, for example mep"))
    tree = apply_overrides({"name": name}, options)
    kind = kind_named(name)
    try:
        return _completed(kind.model_validate(tree))
    except ValidationError as error:
        raise ConfigError(explain(error, kind, tree)) from None


def drawn_weights(encoding: Encoding, num_heads: int) -> dict[str, Tensor]:
    """The weights of a layer of `num_heads` heads, random ones drawn from seed 0."""
    sizes = LayerSizes(num_heads, num_heads * HEAD_SIZE, HEAD_SIZE)
    mistakes = encoding.mistakes(sizes)
    if mistakes:
        raise ConfigError(mistakes)
    declared = encoding.layer_weights(sizes, torch.Generator().manual_seed(0))
    return {name: weight.value for name, weight in declared.items()}


def matrix(encoding: Encoding, num_heads: int, length: int) -> str:
    """What the encoding makes of every pair of `length` tokens in each head, as text."""
    told = [f"{encoding.name}: {has_meaning(encoding)}, query down, key across"]
    refuse_too_many(num_heads * length * length, MOST_PRINTED, "--matrix")
    found = effect(encoding, drawn_weights(encoding, num_heads), torch.arange(length), num_heads, HEAD_SIZE)
    for head, rows in enumerate(found.tolist()):
        told += ["", f"head {head}"]
        told += [
            " ".join(".".rjust(9) if math.isnan(value) else f"{value + 0.0:9.4f}" for value in row) for row in rows
        ]
    return "\n".join(told)


def has_meaning(encoding: Encoding) -> str:
    """What there is to be shown of an encoding; a `ConfigError` where that depends on what tokens say."""
    told = meaning(encoding)
    if told is None:
        rule = f"has nothing to show: {_why_not(encoding)}"
        raise ConfigError(Mistake("NAME", encoding.name, rule, "leave out --matrix and --plot"))
    return told


def _why_not(encoding: Encoding) -> str:
    if isinstance(encoding, KeyBias | Carried):
        return "what it does depends on what tokens say"
    return "it acts on embeddings, not on scores" if isinstance(encoding, Embedded) else "it does nothing to scores"


def refuse_too_many(count: int, most: int, option: str) -> None:
    """A `ConfigError` where a table or figure would take more numbers than memory holds."""
    if count > most:
        rule = f"would compute {count:,} numbers, {most:,} at most"
        raise ConfigError(Mistake(option, None, rule, "give less --length or fewer --heads"))


def _default(kind: type[Encoding]) -> Encoding:
    return _completed(kind(name=_name_of(kind)))


def _completed(encoding: Encoding) -> Encoding:
    """As in a run of the training length above, with a vocabulary of two tokens, the second of which ends a segment."""
    return encoding.resolved(TRAIN_LENGTH).reading([b"a", b".\n"])


def _name_of(kind: type[Encoding]) -> str:
    return str(kind.model_fields["name"].default)


def _kind_of(kind: type[Encoding]) -> str:
    """In the order of the table: what acts in attention first."""
    told = [name for family, (name, _) in KINDS.items() if issubclass(kind, family)]
    return " and ".join(told) or "none"


def _needs(encoding: Encoding) -> Iterator[str]:
    for family, (_, reads) in KINDS.items():
        if isinstance(encoding, family):
            yield reads
    if isinstance(encoding, Placed):
        yield "its own places"
    if getattr(encoding, "across_heads", False):
        yield "all heads on one rank"


def _learned(encoding: Encoding) -> str:
    """Learned weights of each head, then those that the heads of a layer share, then those at the embeddings."""
    one, two, three, many = (
        _count(encoding.layer_weights(_sizes(heads), torch.Generator())) for heads in (1, 2, 3, MANY_HEADS)
    )
    per_head, shared = two - one, 2 * one - two
    if three - two != per_head:
        return f"{many:,} for all {MANY_HEADS} heads"
    told = [f"{per_head:,}"] if per_head else []
    told += [f"{shared:,} for all heads"] if shared else []
    if isinstance(encoding, Embedded):
        at_embeddings = _count(encoding.embedding_weights(_sizes(1), torch.Generator()))
        told += [f"{at_embeddings:,} at the embeddings"] if at_embeddings else []
    return " and ".join(told) or "0"


def _sizes(num_heads: int) -> LayerSizes:
    return LayerSizes(num_heads, HIDDEN_SIZE, HEAD_SIZE)


def _count(weights: dict[str, Weight]) -> int:
    return sum(weight.value.numel() for weight in weights.values() if weight.learned)
