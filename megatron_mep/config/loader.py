"""A run file and overrides -> one tree -> a validated section, with every mistake told at once."""

from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from megatron_mep.config.base import Config
from megatron_mep.config.booleans import taken_for_numbers
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.explain import explain
from megatron_mep.config.place import Tree
from megatron_mep.config.union import other_member

Section = TypeVar("Section", bound=Config)


def load(section: type[Section], file: Path, overrides: Iterable[str] = ()) -> Section:
    """The run file, with what it extends below it and the overrides `a.b=c` above it, validated as `section`."""
    return validate(section, load_tree(file, overrides))


def validate(section: type[Section], tree: Tree) -> Section:
    """The tree as `section`; a `ConfigError` tells every mistake in it."""
    try:
        valid = section.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, section, tree)) from None
    mistakes = list(taken_for_numbers(tree, valid))
    if mistakes:
        raise ConfigError(mistakes)
    return valid


def load_tree(file: Path, overrides: Iterable[str] = ()) -> Tree:
    """The merged tree, not yet validated."""
    return apply_overrides(_read(file, ()), overrides)


def apply_overrides(tree: Tree, overrides: Iterable[str]) -> Tree:
    """The tree with each `a.b=c` merged over it, later ones winning; values are read as YAML."""
    trees: list[Tree] = []
    mistakes: list[Mistake] = []
    for override in overrides:
        try:
            trees.append(_tree_of(override))
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(mistakes)
    # first among themselves: an option survives the choice of its union's member, whichever is stated first
    return merge(tree, reduce(merge, trees, {}))


def merge(below: Tree, above: Tree) -> Tree:
    """`above` over `below`, key by key; lists are replaced whole, and so is a section whose union member changes."""
    merged = dict(below)
    for key, value in above.items():
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not other_member(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
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
        tree = yaml.load(file.read_text(encoding="utf-8"), _UniqueKeys)
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
    if "[" in key:
        whole = key[: key.index("[")]
        raise ConfigError(Mistake(override, None, "names an item of a list", f"state the whole list, {whole}=[...]"))
    try:
        value = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError:
        raise ConfigError(Mistake(key, text, "is not a YAML value", "quote it")) from None
    for part in reversed(parts):
        value = {part: value}
    return value


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key stated twice, of which the standard loader keeps the last in silence."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping, or a `YAMLError` naming the key that stands twice."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return node
