"""What was found out about a machine, a line each."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "red"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    level: Level
    """`red` keeps runs from working, `warn` may."""
    told: str
    remedy: str = ""
    """What to do where it is not `ok`."""

    def __str__(self) -> str:
        return f"{self.told}; {self.remedy}" if self.remedy else self.told


def ok(topic: str, told: str) -> Finding:
    """As it should be."""
    return Finding(topic, "ok", told)


def warn(topic: str, told: str, remedy: str) -> Finding:
    """Works, but not for everything or not well."""
    return Finding(topic, "warn", told, remedy)


def red(topic: str, told: str, remedy: str) -> Finding:
    """Does not work."""
    return Finding(topic, "red", told, remedy)
