import io
import random

import numpy as np
import pytest
import sentencepiece

from megatron_mep.config.errors import DataError
from megatron_mep.data.config import TrainTokenizer
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.tokenizer_training import sample, train
from tests.data.toy import stories

NASTY = [
    "",
    " ",
    "  two  spaces   and more    ",
    "\ttabs\t\tand\n\n\nlines\r\n\rthen a space \n ",
    "\0 and a\0b",
    "\u2581",
    "the \u2581 symbol\u2581\u2581 of spaces\u2581",
    "</s><unk><s><pad> <0x0A>",
    "\u2047 \u2585 \ufffd",
    "caf\u00e9 cafe\u0301 \ufb01 \u2460 \u212b \uff21",
    "\U0001f600 \U0001f469\u200d\U0001f467 \u65e5\u672c\u8a9e",
    "\ufeff\u200b\u2028\u2029\x85\xa0\u3000",
    "\U0010ffff\ufffe\uffff\x01\x7f\x1b[0m",
    "a" * 5000 + " " * 3000 + "\n" * 100,
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(stories(300), TrainTokenizer(vocab_size=320, model_type=request.param))


def test_any_text_comes_back_unchanged(tokenizer):
    for text, tokens in zip(NASTY, tokenizer.encode(NASTY), strict=True):
        assert tokenizer.decode(tokens) == text


def random_texts(count: int) -> list[str]:
    draw = random.Random(1)
    ranges = [range(0x80), range(0x20, 0x3000), range(0x2580, 0x2583), range(0xE000, 0x110000)]
    lengths = (draw.randrange(1, 20) for _ in range(count))
    return ["".join(chr(draw.choice(draw.choice(ranges))) for _ in range(length)) for length in lengths]


def test_random_unicode_comes_back_unchanged(tokenizer):
    texts = random_texts(2000)
    assert [tokenizer.decode(tokens) for tokens in tokenizer.encode(texts, num_threads=2)] == texts


def test_bytes_of_tokens_are_the_bytes_of_their_text(tokenizer):
    for text in NASTY + stories(20) + random_texts(200):
        [tokens] = tokenizer.encode([text])
        assert tokenizer.bytes_of(tokens) == len(text.encode())
        assert tokenizer.bytes_of(np.append(tokens, tokenizer.eod)) == len(text.encode())


def test_bytes_of_a_run_of_tokens_add_up_wherever_it_is_cut(tokenizer):
    text = "".join(NASTY)
    [tokens] = tokenizer.encode([text])
    for cut in range(0, len(tokens), 7):
        assert tokenizer.bytes_of(tokens[:cut]) + tokenizer.bytes_of(tokens[cut:]) == len(text.encode())


def test_no_text_contains_an_end_of_document(tokenizer):
    for tokens in tokenizer.encode(NASTY):
        assert tokenizer.eod not in tokens


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_text_makes_the_same_tokenizer(model_type):
    options = TrainTokenizer(vocab_size=320, model_type=model_type)
    assert train(stories(300), options).model == train(stories(300), options).model


@pytest.mark.parametrize("letter", ["\t", "\n", "\r", "\0", "\u2581", "\u2585", "\u2047"])
def test_text_around_any_letter_is_learned(letter):
    tokenizer = train([f"banana{letter}banana{letter}"] * 50, TrainTokenizer(vocab_size=264))
    [tokens] = tokenizer.encode(["banana"])
    assert len(tokens) < len("banana")


def test_a_space_that_training_never_met_comes_back_unchanged():
    tokenizer = train(["banana"] * 50, TrainTokenizer(vocab_size=263))
    [tokens] = tokenizer.encode([" ba  na "])
    assert tokenizer.decode(tokens) == " ba  na "


def test_long_lines_are_learned():
    tokenizer = train(["banana " * 100_000], TrainTokenizer(vocab_size=266))
    [tokens] = tokenizer.encode(["banana"])
    assert len(tokens) < len("banana")


def test_too_large_a_vocabulary_names_the_largest_possible():
    with pytest.raises(DataError, match="must be at most") as caught:
        train(stories(3), TrainTokenizer(vocab_size=50_000))
    largest = int(caught.value.mistakes[0].remedy.split()[3].rstrip(","))
    assert train(stories(3), TrainTokenizer(vocab_size=largest)).vocab_size == largest


def test_too_small_a_vocabulary_names_the_smallest_possible():
    text = ["".join(map(chr, range(0x4E00, 0x4E80)))]
    with pytest.raises(DataError, match="must be at least") as caught:
        train(text, TrainTokenizer(vocab_size=270, character_coverage=1.0))
    smallest = int(caught.value.mistakes[0].remedy.split()[3])
    assert smallest == 256 + 2 + 1 + 128


def test_a_sample_is_bounded_even_and_decided_by_the_seed():
    texts = [f"{number:06d}" * 100 for number in range(1000)]
    chosen = sample(iter(texts), max_bytes=60_000, seed=3)
    assert sum(map(len, chosen)) == 60_000
    places = [int(text[:6]) for text in chosen]
    assert len(set(places)) == 100
    assert 350 < sum(places) / 100 < 650
    assert chosen == sample(texts, max_bytes=60_000, seed=3) != sample(texts, max_bytes=60_000, seed=4)
    assert sorted(sample(texts, max_bytes=10**9, seed=0)) == texts


def model_file(path, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(stories(100)), model_writer=model, vocab_size=60, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    return path


def test_a_given_model_must_end_documents(tmp_path):
    with pytest.raises(DataError, match="eos"):
        Tokenizer.load(model_file(tmp_path / "a.model", eos_id=-1))


def test_a_given_model_that_changes_text_says_so(tmp_path):
    tokenizer = Tokenizer.load(model_file(tmp_path / "a.model"))
    assert not tokenizer.exact
    [tokens] = tokenizer.encode(["the  fox \u2581"])
    assert tokenizer.decode(tokens) == "the fox"


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "a.model").write_bytes(b"not a model")
    for name in ("a.model", "absent.model"):
        with pytest.raises(DataError, match="must be a SentencePiece model"):
            Tokenizer.load(tmp_path / name)
