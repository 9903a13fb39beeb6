"""Continuations, with a model that counts on in letters: a, b, c, ..."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.harness.writing import Until, continuations
from megatron_mep.probes.scoring import Read
from tests.data.toy import corpus

LETTERS = "abcdefghijklm"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder, _ = corpus(tmp_path_factory.mktemp("writing"))
    return Tokenizer.load(Path(folder) / TOKENIZER)


class Counting:
    """After the letter before the last one the document ends; the last one leads to numbers that are none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.opened: list[tuple[int, int]] = []
        letters = [self.token(letter) for letter in LETTERS]
        self.next = dict(zip(letters, [*letters[1:-1], tokenizer.eod, -1], strict=True)) | {tokenizer.eod: letters[0]}

    def token(self, letter: str) -> int:
        (token,) = self.tokenizer.encode([letter])[0].tolist()
        return int(token)

    def __call__(self, batch_size: int, max_length: int) -> Read:
        self.opened.append((batch_size, max_length))
        read_before = 0

        def read(tokens: Tensor, num_logits: int) -> Tensor:
            nonlocal read_before
            read_before += tokens.size(1)
            assert num_logits == 1
            assert read_before <= max_length
            followers = torch.tensor([self.next.get(token, 0) for token in tokens[:, -1].tolist()])
            logits = torch.nn.functional.one_hot(followers.clamp(min=0), self.tokenizer.vocab_size).float()
            return logits.masked_fill(followers[:, None] < 0, torch.nan)[:, None]

        return read


def written(tokenizer: Tokenizer, prompts: list[str], until: Until, batch_tokens: int = 1000) -> list[str | None]:
    model = Counting(tokenizer)
    tokens = [tuple(map(model.token, prompt)) for prompt in prompts]
    return continuations(tokens, until, model, tokenizer, batch_tokens)


@pytest.mark.parametrize("batch_tokens", [1, 1000])
def test_each_prompt_ends_at_its_own_place(tokenizer: Tokenizer, batch_tokens: int) -> None:
    prompts = ["a", "cb", "g", "a", "j", "c"]
    found = written(tokenizer, prompts, Until(("ef", "h"), 4), batch_tokens)
    assert found == ["bcde", "cd", "", "bcde", "kl", "d"]


def test_the_number_of_tokens_is_a_limit(tokenizer: Tokenizer) -> None:
    assert written(tokenizer, ["a", "k"], Until((), 3)) == ["bcd", "l"]
    assert written(tokenizer, ["a"], Until((), 1)) == ["b"]


def test_a_text_that_ends_goes_before_one_that_it_holds(tokenizer: Tokenizer) -> None:
    assert written(tokenizer, ["a"], Until(("cd", "b"), 5)) == [""]


def test_numbers_that_are_none_are_told_of_their_prompt_alone(tokenizer: Tokenizer) -> None:
    assert written(tokenizer, ["m", "a"], Until((), 2)) == [None, "bc"]
