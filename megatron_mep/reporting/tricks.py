"""Length tricks in the names of lines."""

from collections.abc import Sequence
from typing import Any

from megatron_mep.reporting.records import Row


def with_tricks(model: Row, others: Sequence[Row]) -> str:
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


def _names(model: Row) -> list[Any]:
    return [trick["name"] for trick in model.extrapolation]


def _told(trick: dict[str, Any], rivals: Sequence[dict[str, Any]]) -> str:
    options = [option for option in trick if option != "name"]
    shown = [
        option
        for option in options
        if (option == options[0] and trick[option] is not None)
        or any(rival.get(option) != trick[option] for rival in rivals)
    ]
    return " ".join([trick["name"], *(f"{option} {_value(trick[option])}" for option in shown)])


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
