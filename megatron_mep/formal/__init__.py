"""All tasks of length generalisation that a run file can name."""

from typing import Annotated

from pydantic import Field

from megatron_mep.formal.context_free import BracketedArithmetic, Reverse, SolveEquation, StackManipulation
from megatron_mep.formal.context_sensitive import (
    Addition,
    BinaryAddition,
    BinaryMultiplication,
    Copy,
    DuplicateString,
    MissingDuplicate,
    OddsFirst,
    Sort,
    SquareRoot,
)
from megatron_mep.formal.regular import CycleNavigation, EvenPairs, ModularArithmetic, Parity
from megatron_mep.formal.task import Task

TASKS: tuple[type[Task], ...] = (
    Addition,
    BinaryAddition,
    BinaryMultiplication,
    BracketedArithmetic,
    Copy,
    CycleNavigation,
    DuplicateString,
    EvenPairs,
    MissingDuplicate,
    ModularArithmetic,
    OddsFirst,
    Parity,
    Reverse,
    SolveEquation,
    Sort,
    SquareRoot,
    StackManipulation,
)
"""In the order of their names."""

AnyFormalTask = Annotated[
    Addition
    | BinaryAddition
    | BinaryMultiplication
    | BracketedArithmetic
    | Copy
    | CycleNavigation
    | DuplicateString
    | EvenPairs
    | MissingDuplicate
    | ModularArithmetic
    | OddsFirst
    | Parity
    | Reverse
    | SolveEquation
    | Sort
    | SquareRoot
    | StackManipulation,
    Field(discriminator="name"),
]
