import random

from megatron_mep.data.config import TrainTokenizer
from megatron_mep.data.tokenizer_training import train
from megatron_mep.generation.text import TextStream
from tests.data.toy import stories

BYTES = [bytes([byte]) for byte in range(256)]


def parts_of(text: bytes) -> list[str]:
    """What a stream of single bytes gives, and what is left at its end."""
    stream = TextStream(BYTES.__getitem__)
    return [*map(stream.add, text), stream.end()]


def test_a_letter_comes_when_its_last_byte_does():
    assert parts_of("aé€😀".encode()) == ["a", "", "é", "", "", "€", "", "", "", "😀", ""]


def test_bytes_that_spell_no_letter_are_told():
    assert "".join(parts_of(b"a\xffb")) == "a\\xffb"
    # a letter that another one cuts short
    assert "".join(parts_of(b"\xe2\x82a")) == "\\xe2\\x82a"
    assert parts_of(b"a\xf0\x9f\x98") == ["a", "", "", "", "\\xf0\\x9f\\x98"]


def test_a_replacement_character_is_one_that_was_written():
    assert "".join(parts_of("\ufffd".encode())) == "\ufffd"
    draw = random.Random(0)
    for _ in range(200):
        assert "\ufffd" not in "".join(parts_of(draw.randbytes(20)))


def test_tokens_of_a_tokenizer_give_its_text_back():
    tokenizer = train(stories(100), TrainTokenizer(vocab_size=300))
    for text in ("  the été \ufffd \u2581 😀 日本語\n\t", "a" * 50):
        stream = TextStream(tokenizer.spelling)
        [tokens] = tokenizer.encode([text])
        parts = [stream.add(int(token)) for token in tokens]
        assert "".join(parts) + stream.end() == text == tokenizer.decode(tokens)
        assert stream.add(tokenizer.eod) == ""
