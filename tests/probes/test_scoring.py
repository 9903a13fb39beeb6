"""Scores of models that are known: one that finds everything, one that copies, one that says the same all along."""

import math
from random import Random

import pytest
import torch
from torch import Tensor

from megatron_mep.evaluation.perplexity import DataParallel
from megatron_mep.probes.aggregation import CommonWords, FrequentWords, VariableTracking
from megatron_mep.probes.asking import answers_of, is_answered
from megatron_mep.probes.config import ProbesConfig
from megatron_mep.probes.material import Material
from megatron_mep.probes.oracle import oracle
from megatron_mep.probes.retrieval import Needles, Passkey, Retrieval
from megatron_mep.probes.rows import Answers
from megatron_mep.probes.sample import Sample
from megatron_mep.probes.scoring import Open, Read, batches, forced, found, greedy
from megatron_mep.probes.sets import SampleSet
from tests.probes.toy import Copying, prepared

TASKS: tuple[Retrieval, ...] = (
    Passkey(),
    Needles(keys=3),
    Needles(values=3, max_new_tokens=60),
    VariableTracking(hops=2, max_new_tokens=60),
    CommonWords(max_new_tokens=60),
    FrequentWords(),
)
PROBES = ProbesConfig(batch_tokens=1200)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return prepared(tmp_path_factory.mktemp("material"))[0]


def asked(material: Material, task: Retrieval, length: int = 400, count: int = 4) -> SampleSet:
    depth = 0.3 if task.by_depth else None
    samples = tuple(task.draw(material, length, depth, Random(number)) for number in range(count))
    return SampleSet("retrieval", task, length, depth, samples, task.max_new_tokens)


def scored(material: Material, of: SampleSet, model: Open, probes: ProbesConfig = PROBES) -> Answers:
    return answers_of(of, model, probes, material.tokenizer, DataParallel())


def saying(logits: Tensor) -> Open:
    """A model that expects the same of every token, whatever it reads."""

    def read(tokens: Tensor, num_logits: int) -> Tensor:
        return logits.expand(tokens.size(0), num_logits, -1)

    return lambda _batch_size, _max_length: read


def alone(*answer: int, prompt: tuple[int, ...] = (5,)) -> Sample:
    return Sample(prompt=prompt, answer=answer)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.label)
def test_an_oracle_scores_100(material: Material, task: Retrieval):
    of = asked(material, task)
    tokenizer = material.tokenizer
    answers = scored(material, of, oracle(of.samples, tokenizer.vocab_size, tokenizer.eod))
    assert (answers.found, answers.exact, answers.token_accuracy, answers.mean_rank) == (100, 100, 100, 1)
    assert answers.oracle == 100


@pytest.mark.parametrize("task", [Passkey(), Needles(), Needles(keys=3)], ids=lambda task: task.label)
def test_a_model_that_copies_what_followed_retrieves(material: Material, task: Retrieval):
    """The last tokens before the answer stand before it in the text too, and nowhere else."""
    answers = scored(material, asked(material, task), Copying(material.tokenizer.vocab_size, order=6))
    assert (answers.found, answers.exact, answers.mean_rank) == (100, 100, 1)


def test_a_model_that_cannot_see_so_far_retrieves_nothing(material: Material):
    blind = oracle([], material.tokenizer.vocab_size, material.tokenizer.eod)
    answers = scored(material, asked(material, Passkey()), blind)
    assert (answers.found, answers.exact, answers.token_accuracy) == (0, 0, 0)
    assert answers.oracle == 100


def test_ranks_are_counted_from_the_likeliest():
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0, 1.0])
    (outcome,) = forced([alone(1, 3, 2, 4, 0)], saying(logits), 100)
    assert outcome is not None
    # 2 and 4 are equally likely: the smaller one comes first, as in greedy generation
    ranks = [1, 2, 3, 4, 5]
    assert outcome.rank == pytest.approx(sum(ranks) / 5)
    assert outcome.reciprocal_rank == pytest.approx(sum(1 / rank for rank in ranks) / 5)
    assert (outcome.exact, outcome.accuracy) == (False, 0.2)
    total = sum(math.exp(value) for value in logits.tolist())
    nll = [-math.log(math.exp(logits[token]) / total) for token in (1, 3, 2, 4, 0)]
    assert outcome.nll == pytest.approx(sum(nll) / 5)


def test_the_answer_is_predicted_from_the_question_and_the_right_tokens_before():
    given: list[list[list[int]]] = []

    def read(tokens: Tensor, num_logits: int) -> Tensor:
        given.append(tokens.tolist())
        return torch.zeros(tokens.size(0), num_logits, 10)

    forced([alone(7, 8, 9, prompt=(1, 2))], lambda _batch, _length: read, 100)
    assert given == [[[1, 2, 7, 8]]]


def test_exact_is_what_greedy_generation_writes(material: Material):
    """A random model and tiny answers, some of which it hits."""
    table = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))

    def opened(_batch_size: int, _max_length: int) -> Read:
        return lambda tokens, num_logits: table[tokens[:, -num_logits:]]

    samples = [alone(first, second, prompt=(start,)) for start in range(6) for first in range(6) for second in range(6)]
    exact = [outcome is not None and outcome.exact for outcome in forced(samples, opened, 50)]
    written = greedy(samples, opened, 50, max_new_tokens=2, end_of_document=-1)
    assert exact == [sample.answer == text for sample, text in zip(samples, written, strict=True)]
    assert sum(exact) == 6


def test_generation_ends_with_the_document_of_each():
    def opened(_batch_size: int, _max_length: int) -> Read:
        return lambda tokens, _: torch.eye(10)[(tokens[:, -1:] + 1) % 10]

    samples = [alone(0, prompt=(prompt,)) for prompt in (3, 7, 8)]
    assert greedy(samples, opened, 100, 4, end_of_document=9) == [(4, 5, 6, 7), (8,), ()]


def test_words_are_found_whole_in_any_order_and_case(material: Material):
    def share(text: str, *wanted: str) -> float:
        sample = Sample(prompt=(1,), answer=(1,), wanted=wanted)
        return found(sample, material.encode(text), material.tokenizer)

    assert share(" 12345. And", "12345") == 1
    assert share(" 123456", "12345") == 0
    assert share(" Fox, dog", "dog", "fox", "the", "a") == 0.5
    assert share("", "dog") == 0


def test_samples_of_one_shape_are_read_together_within_the_limit():
    samples = [alone(1, prompt=(1,) * length) for length in (3, 5, 3, 3, 5)]
    assert sorted(batches(samples, batch_tokens=8)) == [[0, 2], [1], [3], [4]]
    assert sorted(batches(samples, batch_tokens=12)) == [[0, 2, 3], [1, 4]]
    assert sorted(batches(samples, batch_tokens=12, max_new_tokens=9)) == [[0], [1], [2], [3], [4]]


def test_what_is_not_finite_is_counted_and_never_scored(material: Material):
    logits = torch.zeros(material.tokenizer.vocab_size)
    logits[3] = math.nan
    answers = scored(material, asked(material, Passkey()), saying(logits))
    assert answers.non_finite == 4
    assert (answers.found, answers.exact, answers.mean_rank, answers.nll) == (None, None, None, None)


@pytest.mark.parametrize("mode", ["greedy", "forced"])
def test_one_way_of_asking_can_be_left_out(material: Material, mode: str):
    probes = ProbesConfig.model_validate({"retrieval": {"modes": [mode]}})
    of = asked(material, Passkey())
    answers = scored(material, of, Copying(material.tokenizer.vocab_size, order=6), probes)
    assert (answers.found, answers.exact) == ((100, None) if mode == "greedy" else (None, 100))


def test_answers_count_for_the_same_questions_asked_in_the_same_ways(material: Material):
    of, model = asked(material, Passkey()), Copying(material.tokenizer.vocab_size, order=6)
    greedy_alone = ProbesConfig.model_validate({"retrieval": {"modes": ["greedy"]}})
    both, part = scored(material, of, model), scored(material, of, model, greedy_alone)
    assert is_answered([both], of, PROBES)
    assert is_answered([both], of, greedy_alone)
    assert is_answered([part], of, greedy_alone)
    assert not is_answered([part], of, PROBES)
    for other in (asked(material, Passkey(), count=3), asked(material, Passkey(), 500), asked(material, Needles())):
        assert not is_answered([both], other, PROBES)


def test_answers_without_finite_logits_count_too(material: Material):
    of, silent = asked(material, Passkey()), saying(torch.full((material.tokenizer.vocab_size,), math.nan))
    assert is_answered([scored(material, of, silent)], of, PROBES)
