"""Prompts of retrieval tasks: their exact length, where the needles are, and that the answer can be found."""

import re
from collections import Counter
from random import Random

import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.probes.aggregation import CommonWords, FrequentWords, VariableTracking
from megatron_mep.probes.material import Material
from megatron_mep.probes.retrieval import Needles, Passkey, Retrieval
from megatron_mep.probes.sample import UnfitLengthError
from tests.probes.toy import WORDS, prepared

NEEDLES = (Needles(), Needles(keys=3), Needles(values=3), Needles(keys=4, queries=2, values=2, max_new_tokens=120))
HAYSTACKS: tuple[Retrieval, ...] = (Passkey(), *NEEDLES, VariableTracking(chains=2, hops=2))
LISTS: tuple[Retrieval, ...] = (CommonWords(), FrequentWords())


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return prepared(tmp_path_factory.mktemp("material"))[0]


def text_of(material: Material, tokens: tuple[int, ...]) -> str:
    return b"".join(material.tokenizer.spelling(token) for token in tokens).decode(errors="replace")


def depth_of(task: Retrieval) -> float | None:
    return 0.5 if task.by_depth else None


@pytest.mark.parametrize("task", HAYSTACKS, ids=lambda task: task.label)
def test_a_prompt_and_what_is_generated_have_the_length(material: Material, task: Retrieval):
    for length in (900, 1501):
        sample = task.draw(material, length, depth_of(task), Random(length))
        assert len(sample.prompt) + task.max_new_tokens == length


@pytest.mark.parametrize("task", LISTS, ids=lambda task: task.label)
def test_a_list_is_as_long_as_fits(material: Material, task: Retrieval):
    for length in (390, 411):
        sample = task.draw(material, length, None, Random(length))
        assert length - 40 < len(sample.prompt) + task.max_new_tokens <= length


@pytest.mark.parametrize("task", [*HAYSTACKS, *LISTS], ids=lambda task: task.label)
def test_what_is_wanted_stands_in_the_prompt_and_in_the_answer(material: Material, task: Retrieval):
    sample = task.draw(material, 900 if task in HAYSTACKS else 400, depth_of(task), Random(1))
    prompt, answer = (text_of(material, tokens) for tokens in (sample.prompt, sample.answer))
    assert sample.wanted
    assert answer == " " + ", ".join(sample.wanted)
    assert all(word in prompt for word in sample.wanted)
    assert sample == task.draw(material, 900 if task in HAYSTACKS else 400, depth_of(task), Random(1))


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_the_passkey_stands_at_its_depth(material: Material, depth: float):
    sample = Passkey().draw(material, 1000, depth, Random(0))
    (key,) = sample.wanted
    text = text_of(material, sample.prompt)
    needle = f"\nThe pass key is {key}. Remember it.\n"
    question = "\nWhat is the pass key? The pass key is"
    assert text.endswith(question)
    before, _, after = text.removesuffix(question).partition(needle)
    assert text.count(key) == 1
    beside = [len(material.encode(part)) for part in (before, after)]
    assert beside[0] / sum(beside) == pytest.approx(depth, abs=0.01)


def test_the_text_around_a_needle_is_a_stretch_of_the_validation_split(material: Material):
    sample = Passkey().draw(material, 300, 0.0, Random(0))
    question = len(material.encode("\nWhat is the pass key? The pass key is"))
    stretch = list(sample.prompt[-question - 100 : -question])
    held_out = material.text.tolist()
    assert any(held_out[start : start + 100] == stretch for start in range(len(held_out)))
    assert material.tokenizer.eod not in sample.prompt


@pytest.mark.parametrize("task", NEEDLES, ids=lambda task: task.label)
def test_needles_are_those_of_the_words_asked_for(material: Material, task: Needles):
    sample = task.draw(material, 1500, depth_of(task), Random(5))
    text = text_of(material, sample.prompt)
    needles = re.findall(r"\nOne of the special magic numbers for (\w+) is (\d+)\.\n", text)
    assert len(needles) == task.keys * task.values
    assert Counter(Counter(word for word, _ in needles).values()) == {task.values: task.keys}
    asked = re.findall(r"\w+", re.findall(r"numbers? for ([\w ]+) (?:is|are)$", text)[-1].replace(" and ", " "))
    assert len(asked) == task.queries
    assert sample.wanted == tuple(number for word in asked for owner, number in needles if owner == word)


def test_variables_are_those_that_lead_to_the_number(material: Material):
    sample = VariableTracking(chains=3, hops=3).draw(material, 1500, None, Random(2))
    text = text_of(material, sample.prompt)
    values = dict(re.findall(r"\nVAR (\w{5}) = (?:VAR )?(\w+)\n", text))
    assert len(values) == 12
    asked = re.findall(r"the value (\d+) in", text)[-1]

    def resolved(name: str) -> str:
        return name if name.isdigit() else resolved(values[name])

    assert sample.wanted == tuple(name for name in values if resolved(name) == asked)


@pytest.mark.parametrize("task", LISTS, ids=lambda task: task.label)
def test_words_asked_for_are_the_most_frequent_ones(material: Material, task: Retrieval):
    sample = task.draw(material, 400, None, Random(3))
    listed, _, _ = text_of(material, sample.prompt).partition("\nThe ")
    ordered = Counter(listed.split()).most_common()
    num_asked = len(sample.wanted)
    assert {word for word, _ in ordered[:num_asked]} == set(sample.wanted)
    assert ordered[num_asked - 1][1] > ordered[num_asked][1]


@pytest.mark.parametrize("task", [*HAYSTACKS, *LISTS], ids=lambda task: task.label)
def test_too_short_a_length_says_which_would_do(material: Material, task: Retrieval):
    with pytest.raises(UnfitLengthError) as caught:
        task.draw(material, 20, depth_of(task), Random(4))
    least = caught.value.least
    assert least is not None
    assert len(task.draw(material, least, depth_of(task), Random(4)).prompt) + task.max_new_tokens <= least
    with pytest.raises(UnfitLengthError):
        task.draw(material, least - 1, depth_of(task), Random(4))


@pytest.mark.parametrize("task", [Passkey(), CommonWords()], ids=lambda task: task.label)
def test_too_long_a_length_says_which_would_do(material: Material, task: Retrieval):
    with pytest.raises(UnfitLengthError) as caught:
        task.draw(material, 10**6, depth_of(task), Random(4))
    most = caught.value.most
    assert most is not None
    assert len(task.draw(material, most, depth_of(task), Random(4)).prompt) + task.max_new_tokens <= most


def test_words_come_from_the_text(material: Material):
    assert set(WORDS) <= set(material.words)
    with pytest.raises(DataError, match=r"must hold 500 different words.* and holds \d+"):
        material.words_for("common_words", 500)
