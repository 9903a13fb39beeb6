"""The loop over tokens, with a model of three lines: the likeliest successor of a token is the next number."""

import torch
from torch import Tensor

from megatron_mep.generation.config import GenerationConfig
from megatron_mep.generation.continuation import continued

VOCABULARY, END = 10, 9


class Counting:
    """Expects what it reads to be counted on by one, and remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[list[list[int]]] = []

    def __call__(self, tokens: Tensor) -> Tensor:
        self.given.append(tokens.tolist())
        return 5 * torch.eye(VOCABULARY)[(tokens[:, -1] + 1) % VOCABULARY]


def greedy(**changes: int | bool) -> GenerationConfig:
    return GenerationConfig.model_validate({"temperature": 0, **changes})


def test_the_prompt_is_read_at_once_and_then_each_token_as_it_comes():
    read, heard = Counting(), []
    found = continued([4, 1], read, greedy(max_new_tokens=3), END, heard.append)
    assert found.tokens == (2, 3, 4)
    assert found.end == "length"
    assert heard == [2, 3, 4]
    # what the last token leads to is never asked for
    assert read.given == [[[4, 1]], [[2]], [[3]]]


def test_the_end_of_the_document_ends_the_text_and_is_no_part_of_it():
    heard: list[int] = []
    found = continued([6], Counting(), greedy(max_new_tokens=8), END, heard.append)
    assert (found.tokens, found.end) == ((7, 8), "document")
    assert heard == [7, 8]


def test_a_document_may_be_followed_by_the_next():
    found = continued([6], Counting(), greedy(max_new_tokens=5, stop_at_end=False), END)
    assert (found.tokens, found.end) == ((7, 8, 9, 0, 1), "length")


def test_an_end_at_the_last_place_counts_as_one():
    assert continued([6], Counting(), greedy(max_new_tokens=3), END).end == "document"
    assert continued([6], Counting(), greedy(max_new_tokens=2), END).end == "length"


def test_only_tokens_after_the_first_have_a_speed_of_decoding():
    speeds = {
        new: continued([prompt], Counting(), greedy(max_new_tokens=new), END).decode_tokens_per_s
        for prompt, new in ((1, 1), (1, 2))
    }
    assert speeds[1] is None
    assert speeds[2] is not None
    assert speeds[2] > 0
    ended_at_once = continued([8], Counting(), greedy(max_new_tokens=4), END)
    assert (ended_at_once.tokens, ended_at_once.decode_tokens_per_s) == ((), None)
    assert ended_at_once.prefill_tokens_per_s > 0


def test_the_seed_decides_what_is_drawn():
    options = GenerationConfig(max_new_tokens=20, temperature=3.0, stop_at_end=False, seed=1)
    first, second = (continued([1], Counting(), options, END).tokens for _ in range(2))
    assert first == second
    assert continued([1], Counting(), options.model_copy(update={"seed": 2}), END).tokens != first
