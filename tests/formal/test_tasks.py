"""Every task of length generalisation, answered anew from its question by another way."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from megatron_mep.formal import TASKS
from megatron_mep.formal.context_sensitive import Addition, Copy
from megatron_mep.formal.task import Task

LENGTHS = (1, 2, 3, 7, 20)


def number(symbols: str, base: int, lowest_first: bool = False) -> int:
    return int(symbols[::-1] if lowest_first else symbols, base)


def operands(question: str, sign: str) -> list[str]:
    return question.replace(" ", "").split(sign)


def of_bits(question: str, sign: str, apply: Callable[[int, int], int]) -> int:
    first, second = (number(part, 2, lowest_first=True) for part in operands(question, sign))
    return apply(first, second)


def stack(question: str) -> str:
    """What is left when every pop takes away the nearest letter before it."""
    letters = re.sub(r"push_|\s", "", question.replace("pop", "!"))
    while "!" in letters:
        letters = re.sub(r"[ab]!|^!", "", letters)
    return " ".join(reversed(letters))


def solution(question: str) -> str:
    left, _, right = question.rpartition("=")
    (found,) = [x for x in range(5) if eval(left, {"x": x}) % 5 == int(right)]
    return str(found)


def missing(question: str) -> str:
    letters = question.split()
    half, hidden = len(letters) // 2, letters.index("?")
    return letters[hidden - half]


ORACLES: dict[str, Callable[[str], str]] = {
    "addition": lambda question: " ".join(str(sum(int(part) for part in operands(question, "+")))),
    "binary_addition": lambda question: _written(question, "+", int.__add__),
    "binary_multiplication": lambda question: _written(question, "*", int.__mul__),
    "bracketed_arithmetic": lambda question: str(eval(question) % 5),
    "copy": lambda question: question,
    "cycle_navigation": lambda question: str(sum({"<": 4, ".": 0, ">": 1}[step] for step in question.split()) % 5),
    "duplicate_string": lambda question: f"{question} {question}",
    "even_pairs": lambda question: _even(sum(a != b for a, b in pairwise(question.split()))),
    "missing_duplicate": missing,
    "modular_arithmetic": lambda question: str(eval(question) % 5),
    "odds_first": lambda question: " ".join(
        letter for rest in (1, 0) for place, letter in enumerate(question.split(), 1) if place % 2 == rest
    ),
    "parity": lambda question: _even(sum(int(bit) for bit in question.split())),
    "reverse": lambda question: question[::-1],
    "solve_equation": solution,
    "sort": lambda question: " ".join(digit for value in "01234" for digit in question.split() if digit == value),
    "square_root": lambda question: " ".join(f"{math.floor(math.sqrt(number(question.replace(' ', ''), 2))):b}"),
    "stack_manipulation": stack,
}


def _written(question: str, sign: str, apply: Callable[[int, int], int]) -> str:
    first, _ = operands(question, sign)
    bits = len(first) + 1 if sign == "+" else 2 * len(first)
    value = of_bits(question, sign, apply)
    return " ".join(str(value >> place & 1) for place in range(bits))


def _even(count: int) -> str:
    return "odd" if count % 2 else "even"


def test_every_task_has_a_name_of_its_own_and_an_oracle():
    names = [kind.model_fields["name"].default for kind in TASKS]
    assert names == sorted(ORACLES)


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("length", LENGTHS)
def test_its_answers_are_right(kind: type[Task], length: int):
    task, random = kind(), Random(length)
    for _ in range(40):
        exercise = task.draw(length, random)
        assert " ".join(exercise.answer) == ORACLES[task.name](" ".join(exercise.question))


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_its_questions_differ_and_grow_with_the_length(kind: type[Task]):
    task, random = kind(), Random(0)
    exercises = [task.draw(20, random) for _ in range(20)]
    assert len({exercise.question for exercise in exercises}) == 20
    assert all(len(exercise.question) >= 20 for exercise in exercises)
    assert exercises[0] == kind().draw(20, Random(0))


def test_a_document_is_the_question_and_its_answer():
    task = Copy(letters=2)
    exercise = task.draw(3, Random(1))
    assert re.fullmatch(r"copy: ([ab] [ab] [ab]) =", task.asked(exercise))
    assert task.asked(exercise) == f"copy:{task.answered(exercise)} ="


def test_a_sum_may_be_written_from_its_lowest_digit_on():
    forward, backward = (Addition(lowest_first=choice).draw(6, Random(3)) for choice in (False, True))
    assert backward.answer == forward.answer[::-1]
    assert operands("".join(backward.question), "+") == [
        part[::-1] for part in operands("".join(forward.question), "+")
    ]
