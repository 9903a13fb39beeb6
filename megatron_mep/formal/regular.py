"""Regular tasks: a finite automaton answers them."""

from random import Random
from typing import ClassVar, Literal

from megatron_mep.formal.task import NEURAL_CHOMSKY, POSITIONAL_IMPACT, Exercise, Task, drawn

MODULUS = 5
"""Of modular arithmetic and of the cycle."""


class EvenPairs(Task):
    """Whether the pairs `a b` and `b a` of neighbours are together even in number: `a b b a` -> `even`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "letters"
    name: Literal["even_pairs"] = "even_pairs"

    def draw(self, length: int, random: Random) -> Exercise:
        """Every such pair changes the letter."""
        letters = drawn("ab", length, random)
        return Exercise(letters, ("even" if letters[0] == letters[-1] else "odd",))


class Parity(Task):
    """Whether the ones are even in number: `1 0 1 1` -> `odd`."""

    source: ClassVar[str] = f"{NEURAL_CHOMSKY}; {POSITIONAL_IMPACT}"
    counts: ClassVar[str] = "bits"
    name: Literal["parity"] = "parity"

    def draw(self, length: int, random: Random) -> Exercise:
        """Bits."""
        bits = drawn("01", length, random)
        return Exercise(bits, ("odd" if bits.count("1") % 2 else "even",))


class CycleNavigation(Task):
    """Where one stands on a cycle of five places after steps forward, backward and none: `> > < .` -> `1`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "steps"
    name: Literal["cycle_navigation"] = "cycle_navigation"

    def draw(self, length: int, random: Random) -> Exercise:
        """Steps from place 0."""
        steps = drawn("<.>", length, random)
        return Exercise(steps, (str((steps.count(">") - steps.count("<")) % MODULUS),))


class ModularArithmetic(Task):
    """The value modulo 5 of sums and products without brackets, products first: `1 + 2 * 4` -> `4`."""

    source: ClassVar[str] = NEURAL_CHOMSKY
    counts: ClassVar[str] = "operands"
    name: Literal["modular_arithmetic"] = "modular_arithmetic"

    def draw(self, length: int, random: Random) -> Exercise:
        """Operands from 0 to 4."""
        operands = [random.randrange(MODULUS) for _ in range(length)]
        operators = drawn("+-*", length - 1, random)
        total, product = 0, operands[0]
        symbols = [str(operands[0])]
        for operator, operand in zip(operators, operands[1:], strict=True):
            symbols += [operator, str(operand)]
            if operator == "*":
                product = product * operand % MODULUS
            else:
                total, product = total + product, operand if operator == "+" else -operand
        return Exercise(tuple(symbols), (str((total + product) % MODULUS),))
