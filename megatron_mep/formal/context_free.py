"""Deterministic context-free tasks: an automaton with a stack answers them."""

from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from megatron_mep.formal.regular import MODULUS
from megatron_mep.formal.task import NEURAL_CHOMSKY, POSITIONAL_IMPACT, Exercise, Task, drawn

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Reverse(Task):
    """The letters from last to first: `a b c` -> `c b a`."""

    source: ClassVar[str] = f"{NEURAL_CHOMSKY}; {POSITIONAL_IMPACT}"
    counts: ClassVar[str] = "letters"
    name: Literal["reverse"] = "reverse"
    letters: int = Field(default=26, ge=2, le=26)
    """How many letters there are; the source's language has 2."""

    def draw(self, length: int, random: Random) -> Exercise:
        """Letters."""
        letters = drawn(LETTERS[: self.letters], length, random)
        return Exercise(letters, letters[::-1])


class StackManipulation(Task):
    """What a stack holds, the top first, after pushes and pops: `a b pop push_a` -> `a a`.

    The letters that it begins with come from the bottom up. Nothing happens where an empty stack is popped.
    """

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "letters and actions"
    name: Literal["stack_manipulation"] = "stack_manipulation"

    def draw(self, length: int, random: Random) -> Exercise:
        """Up to `length` letters, then actions."""
        begun = drawn("ab", random.randint(1, length), random)
        actions = tuple(random.choices(("pop", "push_a", "push_b"), k=length - len(begun)))
        stack = list(begun)
        for action in actions:
            if action != "pop":
                stack.append(action[-1])
            elif stack:
                stack.pop()
        return Exercise(begun + actions, tuple(reversed(stack)))


class BracketedArithmetic(Task):
    """The value modulo 5 of an expression in brackets: `( 1 + ( 2 * 4 ) )` -> `4`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "operands"
    name: Literal["bracketed_arithmetic"] = "bracketed_arithmetic"

    def draw(self, length: int, random: Random) -> Exercise:
        """Operands from 0 to 4."""
        symbols, value = _bracketed(length, "+-*", random)
        return Exercise(symbols, (str(value),))


class SolveEquation(Task):
    """The unknown of an equation modulo 5, which has one solution: `( x - 3 ) = 4` -> `2`.

    Sums and differences alone: a product with 0 would leave the unknown open.
    """

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "operands"
    name: Literal["solve_equation"] = "solve_equation"

    def draw(self, length: int, random: Random) -> Exercise:
        """The unknown stands for one of the operands."""
        symbols, value = _bracketed(length, "+-", random)
        hidden = random.choice([place for place, symbol in enumerate(symbols) if symbol.isdigit()])
        return Exercise((*symbols[:hidden], "x", *symbols[hidden + 1 :], "=", str(value)), (symbols[hidden],))


def _bracketed(operands: int, operators: str, random: Random) -> tuple[tuple[str, ...], int]:
    """The symbols of an expression with a bracket around every operation, and its value modulo 5."""
    if operands == 1:
        digit = random.randrange(MODULUS)
        return (str(digit),), digit
    left_operands = random.randint(1, operands - 1)
    left, left_value = _bracketed(left_operands, operators, random)
    right, right_value = _bracketed(operands - left_operands, operators, random)
    operator = random.choice(operators)
    values = {"+": left_value + right_value, "-": left_value - right_value, "*": left_value * right_value}
    return ("(", *left, operator, *right, ")"), values[operator] % MODULUS
