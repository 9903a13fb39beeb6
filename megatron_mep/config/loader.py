"""A run file and overrides -> one tree -> a validated section, with every mistake told at once."""

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.explain import explain

Tree = dict[str, Any]
Section = TypeVar("Section", bound=Config)

CHOOSERS = ("name", "kind", "kernel")
"""The keys that choose a member of a union: where one changes, the options beside it belong to the old member."""


def load(section: type[Section], file: Path, overrides: Iterable[str] = ()) -> Section:
    """The run file, with what it extends below it and the overrides `a.b=c` above it, validated as `section`."""
    return validate(section, load_tree(file, overrides))


def validate(section: type[Section], tree: Tree) -> Section:
    """The tree as `section`; a `ConfigError` tells every mistake in it."""
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, section, tree)) from None


def load_tree(file: Path, overrides: Iterable[str] = ()) -> Tree:
    """The merged tree, not yet validated."""
    return apply_overrides(_read(file, ()), overrides)


def apply_overrides(tree: Tree, overrides: Iterable[str]) -> Tree:
    """The tree with each `a.b=c` merged over it, later ones winning; values are read as YAML."""
    for override in overrides:
        tree = merge(tree, _tree_of(override))
    return tree


def merge(below: Tree, above: Tree) -> Tree:
    """`above` over `below`, key by key; lists are replaced whole, and so is a section whose union member changes."""
    if any(key in above and key in below and above[key] != below[key] for key in CHOOSERS):
        return above
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = merge(below[key], value) if both else value
    return merged


def _read(file: Path, extended_by: tuple[Path, ...]) -> Tree:
    if file.resolve() in extended_by:
        chain = " -> ".join(path.name for path in (*extended_by, file))
        raise ConfigError(Mistake("extends", str(file), f"must not come back to itself ({chain})", "break the circle"))
    tree = _parse(file)
    below = tree.pop("extends", None)
    if below is None:
        return tree
    if not isinstance(below, str):
        raise ConfigError(Mistake("extends", below, "must be the path of one file", f"write it relative to {file}"))
    return merge(_read(file.parent / below, (*extended_by, file.resolve())), tree)


def _parse(file: Path) -> Tree:
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 (a subclass of the safe loader)
    except FileNotFoundError:
        raise ConfigError(Mistake(str(file), None, "is not there", "check the path")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Mistake(str(file), None, f"cannot be read ({error})", "give a YAML file in UTF-8")) from None
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise ConfigError(Mistake(str(file), None, f"is not valid YAML ({where})", "correct that line")) from None
    if not isinstance(tree, dict):
        raise ConfigError(Mistake(str(file), tree, "must hold keys and values", "see the files in configs/"))
    return tree


def _tree_of(override: str) -> Tree:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(Mistake(override, None, "is not an override", "write key.sub=value, without spaces around ="))
    try:
        value = yaml.load(text, _UniqueKeys)  # noqa: S506 (a subclass of the safe loader)
    except yaml.YAMLError:
        raise ConfigError(Mistake(key, text, "is not a YAML value", "quote it")) from None
    for part in reversed(parts):
        value = {part: value}
    return value


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key stated twice, of which the standard loader keeps the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Mapping[Hashable, Any]:
        """A mapping, or a `YAMLError` naming the key that stands twice."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
