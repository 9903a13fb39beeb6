"""What pydantic found wrong, in the project's words: the key as the user wrote it, the rule, and what to do."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from megatron_mep.config.errors import Mistake
from megatron_mep.config.misspelt import did_you_mean, misspellings, read_as_meant
from megatron_mep.config.place import Place, Tree, place_of
from megatron_mep.config.union import choices


def explain(error: ValidationError, section: type[BaseModel], tree: Tree) -> list[Mistake]:
    """Every mistake of the tree, each told once; what stands under a misspelt key is checked as it was meant."""
    misspelt = misspellings(error, section, tree)
    if not misspelt:
        return [_mistake(details, section, tree) for details in _innermost(error)]
    told = [_unknown_key(one.place, one.value) for one in misspelt]
    meant = read_as_meant(tree, misspelt)
    try:
        section.model_validate(meant)
    except ValidationError as rest:
        return told + explain(rest, section, meant)
    return told


def _innermost(error: ValidationError) -> Iterator[Any]:
    """The errors without those of a list or section that is only wrong because a part of it is."""
    found = error.errors(include_url=False)
    for details in found:
        location = details["loc"]
        if not any(other["loc"][: len(location)] == location and len(other["loc"]) > len(location) for other in found):
            yield details


def _mistake(details: Any, section: type[BaseModel], tree: Tree) -> Mistake:
    place, kind, context = place_of(details["loc"], section, tree), details["type"], details.get("ctx", {})
    key, value = place.key, details["input"]
    if kind == "missing":
        return Mistake(key, None, "is required", f"state it{_about(place)}")
    if kind == "extra_forbidden":
        return _unknown_key(place, value)
    if kind == "union_tag_invalid":
        return Mistake(f"{key}.{_chooser(place)}", context["tag"], "is not a known choice",
                       did_you_mean(context["tag"], _listed(context["expected_tags"])))  # fmt: skip
    if kind == "union_tag_not_found" and isinstance(value, dict):
        return Mistake(f"{key}.{_chooser(place)}", None, "is required", f"state one of {', '.join(_tags(place))}")
    if kind in ("union_tag_not_found", "model_type"):
        return Mistake(key, value, "must hold keys and values", _spelt_out(place))
    if kind == "literal_error":
        return Mistake(key, value, "is not a known choice", did_you_mean(str(value), _listed(context["expected"])))
    rule, _, remedy = details["msg"].removeprefix("Value error, ").removeprefix("Input ").partition("; ")
    return Mistake(key, value, _clause(rule), remedy or f"correct it{_about(place)}")


def _unknown_key(place: Place, value: Any) -> Mistake:
    stands = None if isinstance(value, dict | list) else value
    return Mistake(place.key, stands, "is not a known key", did_you_mean(str(place.path[-1]), place.known_keys))


def _about(place: Place) -> str:
    """The documentation of the key, where it has one."""
    fields = [holder.model_fields.get(place.last_key) for holder in place.holders]
    texts = [field.description for field in fields if field is not None and field.description]
    return f" ({' '.join(texts[0].split())})" if texts else ""


def _spelt_out(place: Place) -> str:
    """How a section is written, for one who wrote a value in its stead."""
    key = _chooser(place) or place.keys[0]
    return f"write {place.key}.{key}=..., or {key} under {place.key} in the file"


def _chooser(place: Place) -> str | None:
    return next((chooser for member in place.sections for chooser in choices(member)), None)


def _tags(place: Place) -> list[str]:
    return [tag for member in place.sections for tags in choices(member).values() for tag in tags]


def _listed(alternatives: str) -> list[str]:
    """pydantic's `'a', 'b' or 'c'` as a list."""
    return [one.strip(" '") for one in alternatives.replace(" or ", ", ").split(",")]


def _clause(rule: str) -> str:
    """pydantic's `Should be so` as a rule: `must be so`."""
    return (rule[:1].lower() + rule[1:]).replace("should", "must", 1)
