"""Length tricks in the names of lines."""

from collections.abc import Sequence
from typing import Any

from megatron_mep.reporting.rows import ModelRow


def with_tricks(model: ModelRow, others: Sequence[ModelRow]) -> str:
    """The run's name and the tricks that act: `rope + yarn factor 4`.

    Each is told by its first option, where one is stated, and by those that it has otherwise in another model of the
    same tricks.
    """
    rivals = [other for other in others if _names(other) == _names(model)]
    tricks = (
        _told(trick, [rival.extrapolation[place] for rival in rivals])
        for place, trick in enumerate(model.extrapolation)
    )
    return " + ".join([model.run, *tricks])


def _names(model: ModelRow) -> list[Any]:
    return [trick["name"] for trick in model.extrapolation]


def _told(trick: dict[str, Any], rivals: Sequence[dict[str, Any]]) -> str:
    options = [option for option in trick if option != "name"]
    shown = [
        option
        for option in options
        if (option == options[0] and trick[option] is not None)
        or any(rival.get(option) != trick[option] for rival in rivals)
    ]
    told = (f"{option} {_value(trick[option], [rival.get(option) for rival in rivals])}" for option in shown)
    return " ".join([trick["name"], *told])


def _value(value: Any, others: Sequence[Any]) -> str:
    """In six digits, or in all where another value has the same six."""
    if not isinstance(value, float):
        return "none" if value is None else str(value)
    short = f"{value:g}"
    alike = any(isinstance(other, float) and other != value and f"{other:g}" == short for other in others)
    return str(value) if alike and float(short) != value else short
