"""What the verbs of the command line share: how a verb is added, and the arguments that several of them take."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Verbs: TypeAlias = argparse._SubParsersAction
"""Where verbs are added, or the actions of one."""
Function: TypeAlias = Callable[[argparse.Namespace], int | None]
"""What a verb does with its options; its exit code, 0 where it says nothing."""

OVERRIDES = "key.sub=value ...: overrides of the run file, for example training.steps=100 model.encoding.name=alibi"


def add_verb(verbs: Verbs, name: str, function: Function | None, summary: str) -> argparse.ArgumentParser:
    """A verb that is explained by its summary; without a function where its actions have them."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
    parser.set_defaults(verb=function)
    return parser


def add_run(parser: argparse.ArgumentParser) -> None:
    """A run file and overrides of it."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run file, see configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def fraction(text: str) -> float:
    """A number above 0, at most 1."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {number:g}")
    return number
