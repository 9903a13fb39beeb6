"""What a user is told when a run cannot go on: the key, the value, the rule and the remedy of every mistake."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar


@dataclass(frozen=True)
class Mistake:
    """One thing that the user can put right."""

    key: str
    """Where it is: a key of the run file (`model.num_layers`), an option (`--lengths`) or a file's path."""
    value: object
    """What stands there; `None` where nothing does."""
    rule: str
    """What must hold, as a whole clause: `must divide model.num_attention_heads=12`."""
    remedy: str
    """What to do about it, as an imperative: `set parallel.tensor to 1, 2, 3, 4, 6 or 12`."""

    def under(self, section: str) -> "Mistake":
        """The same mistake, told by one who knows in which section its key stands."""
        return replace(self, key=f"{section}.{self.key}")

    def __str__(self) -> str:
        stands = "" if self.value is None else f" = {self.value!r}"
        return f"{self.key}{stands}: {self.rule}; {self.remedy}"


class UserError(Exception):
    """A mistake of the user's, never of ours: the command line prints it without a traceback."""

    exit_code: ClassVar[int] = 2

    def __init__(self, mistakes: Mistake | Iterable[Mistake]) -> None:
        self.mistakes: tuple[Mistake, ...] = (mistakes,) if isinstance(mistakes, Mistake) else tuple(mistakes)
        assert self.mistakes, "a UserError says at least one mistake"
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class ConfigError(UserError):
    """The run file, or an override on the command line, is wrong."""


class DataError(UserError):
    """Text, tokenizer or prepared corpus cannot be used."""


class CheckpointError(UserError):
    """A checkpoint cannot be read, or belongs to another model."""


class RanksError(UserError):
    """The ranks of a job do not come together: often a node's fault, so that starting it again may help."""

    exit_code: ClassVar[int] = 69
    """EX_UNAVAILABLE of sysexits: for a script that starts jobs again, a crash like any other."""


class TrainingError(UserError):
    """A run has come to numbers with which it cannot go on; started again as it is, it comes to the same ones."""

    exit_code: ClassVar[int] = 3
