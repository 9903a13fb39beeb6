"""What the harness' own code makes of texts before a model is asked; that model says where the harness' borders are."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.config.errors import CheckpointError
from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.harness.length import HarnessError, MaxLength
from megatron_mep.probes.scoring import Read
from tests.data.toy import corpus

pytest.importorskip("lm_eval", reason="needs pip install 'megatron-mep[harness]'")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder, _ = corpus(tmp_path_factory.mktemp("language_model"))
    return Tokenizer.load(Path(folder) / TOKENIZER)


class Flat:
    """Finds all tokens equally likely, and remembers what it read."""

    def __init__(self, tokenizer: Tokenizer, value: float = 0.0) -> None:
        self.tokenizer, self.value = tokenizer, value
        self.read: list[list[int]] = []

    def logits(self, tokens: Tensor) -> Tensor:
        self.read += tokens.tolist()
        return torch.full((*tokens.shape, self.tokenizer.vocab_size), self.value)

    def opened(self, batch_size: int, max_length: int) -> Read:  # noqa: ARG002
        return lambda tokens, num_logits: self.logits(tokens)[:, -num_logits:]

    def asked(self) -> Any:
        from megatron_mep.harness.language_model import Asked

        return Asked(self.logits, self.opened, 64, "a checkpoint", {"run": "flat"})


def language_model(flat: Flat, **length: Any) -> Any:
    from megatron_mep.harness.language_model import MepLM

    return MepLM(flat.asked, flat.tokenizer, MaxLength(**{"tokens": 1000, **length}))


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=given, task_name="toy") for given in arguments]


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    tokens: list[int] = tokenizer.encode([text])[0].tolist()
    return tokens


def test_borders_between_texts_are_those_of_the_whole(tokenizer: Tokenizer) -> None:
    flat = Flat(tokenizer)
    whole = tokens_of(tokenizer, "the quick brown fox")
    context = tokens_of(tokenizer, "the quick")
    found = language_model(flat).loglikelihood(requests(("the quick ", "brown fox"), ("the quick", " brown fox")))
    # a space at the end of a context belongs to what follows
    expected = -(len(whole) - len(context)) * math.log(tokenizer.vocab_size)
    assert [score for score, _ in found] == pytest.approx([expected] * 2)
    assert flat.read == [whole[:-1]]


def test_an_empty_context_is_the_end_of_a_document(tokenizer: Tokenizer) -> None:
    flat = Flat(tokenizer)
    text = tokens_of(tokenizer, "lazy dog")
    ((score, _),) = language_model(flat).loglikelihood(requests(("", "lazy dog")))
    assert flat.read == [[tokenizer.eod, *text[:-1]]]
    assert score == pytest.approx(-len(text) * math.log(tokenizer.vocab_size))


@pytest.mark.parametrize("max_length", [1, 3, 7, 8, 1000])
def test_windows_score_each_token_of_a_text_once(tokenizer: Tokenizer, max_length: int) -> None:
    flat = Flat(tokenizer)
    texts = ["the quick brown fox jumps over the lazy dog", "", "a"]
    lengths = [len(tokens_of(tokenizer, text)) for text in texts]
    found = language_model(flat, tokens=max_length).loglikelihood_rolling(requests(*((text,) for text in texts)))
    assert found == pytest.approx([-length * math.log(tokenizer.vocab_size) for length in lengths])
    assert max(map(len, flat.read)) == min(max_length, lengths[0])
    first = tokens_of(tokenizer, texts[0])[: max_length - 1]
    assert [tokenizer.eod, *first][: lengths[0]] in flat.read


def test_nothing_is_cut_unless_the_user_says_so(tokenizer: Tokenizer) -> None:
    flat = Flat(tokenizer)
    longer = requests(("the quick brown fox jumps over", " the"), ("a", " dog"))
    with pytest.raises(HarnessError, match="--max-length = 4: would cut"):
        language_model(flat, tokens=4).loglikelihood(longer)
    assert flat.read == []
    cutting = language_model(flat, tokens=4, truncate=True)
    cutting.loglikelihood(longer)
    whole = tokens_of(tokenizer, "the quick brown fox jumps over the")
    assert whole[-5:-1] in flat.read
    assert cutting.get_model_info()["truncated_requests"] == 1


def test_a_continuation_without_tokens_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(HarnessError, match="has a request without tokens to score"):
        language_model(Flat(tokenizer)).loglikelihood(requests(("the", "")))


def test_room_for_what_is_generated_is_part_of_the_length(tokenizer: Tokenizer) -> None:
    prompt = "the quick brown"
    length = len(tokens_of(tokenizer, prompt))
    asked = requests((prompt, {"until": ["."], "max_gen_toks": 5}))
    with pytest.raises(HarnessError, match=f"set it to {length + 5} or more"):
        language_model(Flat(tokenizer), tokens=length + 4).generate_until(asked)
    assert len(language_model(Flat(tokenizer), tokens=length + 5).generate_until(asked)) == 1


@pytest.mark.parametrize("options", [{"do_sample": True, "temperature": 0.8}, {"num_beams": 4}, {"temperature": 0.7}])
def test_what_is_not_greedy_is_refused(tokenizer: Tokenizer, options: dict[str, Any]) -> None:
    with pytest.raises(HarnessError, match="of how text is generated, which is greedy here"):
        language_model(Flat(tokenizer)).generate_until(requests(("the", {"until": [], **options})))


def test_options_of_the_harness_own_tasks_are_greedy(tokenizer: Tokenizer) -> None:
    flat = Flat(tokenizer)
    options = {"until": "\n\n", "do_sample": False, "temperature": 0.0, "top_p": 1.0, "max_new_tokens": 3}
    language_model(flat).generate_until(requests(("the", options), ("", {**options, "max_new_tokens": 2})))
    # all tokens are equally likely: the first one is taken
    assert [0] in flat.read
    assert [tokenizer.eod] in flat.read


def test_a_checkpoint_that_has_diverged_is_told(tokenizer: Tokenizer) -> None:
    broken = language_model(Flat(tokenizer, value=torch.nan))
    with pytest.raises(CheckpointError, match="a checkpoint: gives logits that are not finite for 2 requests"):
        broken.loglikelihood(requests(("the", " fox"), ("the", " dog")))
    with pytest.raises(CheckpointError, match="for 1 requests"):
        broken.generate_until(requests(("the", {"until": []})))
