"""What pydantic found wrong, in the project's words: the key as the user wrote it, the rule, and what to do."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from megatron_mep.config.errors import Mistake

Location = Sequence[int | str]
Tree = dict[str, Any]


def explain(error: ValidationError, section: type[BaseModel], tree: Tree) -> list[Mistake]:
    """Every mistake of the tree, each told once."""
    found = error.errors(include_url=False)
    meant = {
        (*details["loc"][:-1], misspelt(details["loc"], section))
        for details in found
        if details["type"] == "extra_forbidden"
    }
    # a misspelt required key is both unknown and missing: that is one mistake
    told = [details for details in found if not (details["type"] == "missing" and tuple(details["loc"]) in meant)]
    return [_mistake(details, section, tree) for details in told]


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`did you mean 'x'?`, or all that is known where nothing is alike."""
    alike = _alike(word, known)
    return f"did you mean {alike[0]!r}?" if alike else f"use one of {', '.join(known)}"


def misspelt(location: Location, section: type[BaseModel]) -> str | None:
    """The key that an unknown one at `location` was probably meant to be."""
    return next(iter(_alike(str(location[-1]), _keys_at(section, location))), None)


def written(location: Location, tree: Any) -> list[int | str]:
    """The location as the user wrote it: pydantic also names the union's member, which no file contains."""
    path: list[int | str] = []
    for depth, part in enumerate(location):
        inside = part in tree if isinstance(tree, dict) else isinstance(tree, list | tuple) and isinstance(part, int)
        if inside or isinstance(part, int) or depth == len(location) - 1:
            path.append(part)
            tree = tree[part] if inside else None
    return path


def models_at(section: type[BaseModel], location: Location) -> list[type[BaseModel]]:
    """The sections that may stand where the last part of the location is a key."""
    models = [section]
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        holding = [model for model in models if part in model.model_fields]
        if holding:
            models = [found for model in holding for found in _models_in(model.model_fields[part].annotation)]
        else:
            models = [model for model in models if part in _tags(model)] or models
    return models


def _mistake(details: Any, section: type[BaseModel], tree: Tree) -> Mistake:
    location, kind, context = details["loc"], details["type"], details.get("ctx", {})
    key = _key(location, tree)
    value = details["input"]
    if kind == "missing":
        return Mistake(key, None, "is required", f"state it{_about(section, location)}")
    if kind == "extra_forbidden":
        return Mistake(key, value, "is not a known key", did_you_mean(str(location[-1]), _keys_at(section, location)))
    if kind == "union_tag_invalid":
        known = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        remedy = did_you_mean(context["tag"], [tag for tag in known if tag != "own"])
        return Mistake(key, context["tag"], "is not a known choice", remedy)
    if kind == "union_tag_not_found":
        return Mistake(key, value, "must say which one it is", "state its `name` or `kind`")
    if kind == "literal_error":
        known = [choice.strip(" '") for choice in context["expected"].replace(" or ", ", ").split(",")]
        return Mistake(key, value, "is not a known choice", did_you_mean(str(value), known))
    rule = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return Mistake(key, value, rule[:1].lower() + rule[1:], f"correct it{_about(section, location)}")


def _about(section: type[BaseModel], location: Location) -> str:
    """The documentation of the key, where it has one."""
    name = str(location[-1])
    for model in models_at(section, location):
        if name in model.model_fields and model.model_fields[name].description:
            return f" ({' '.join(str(model.model_fields[name].description).split())})"
    return ""


def _key(location: Location, tree: Tree) -> str:
    """The location as a dotted key."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in written(location, tree)).lstrip(".")


def _keys_at(section: type[BaseModel], location: Location) -> list[str]:
    return [name for model in models_at(section, location) for name in model.model_fields]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _tags(model: type[BaseModel]) -> set[str]:
    return {str(choice) for field in model.model_fields.values() for choice in get_args(field.annotation)}


def _alike(word: str, known: Sequence[str]) -> list[str]:
    return get_close_matches(word, known, n=1, cutoff=0.6)
