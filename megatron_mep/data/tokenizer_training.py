"""Trains a SentencePiece tokenizer that gives any text back unchanged, on a bounded sample of a corpus."""

import io
import random
import re
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from sentencepiece import SentencePieceTrainer

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.config import TrainTokenizer
from megatron_mep.data.tokenizer import SPACE_SYMBOL, Tokenizer

# Drawn and dropped as a whole.
_BLOCK_CHARACTERS = 65_536
# A longer one is cut: SentencePiece would leave it out.
_SENTENCE_CHARACTERS = 4_096
# SentencePiece keeps two letters for itself: it would take one for a space, and leave out sentences with the other.
_SENTENCE_ENDS = re.compile(f"[\n{SPACE_SYMBOL}\u2585]+")
# The unigram trainer's sums depend on it; every machine must find the same tokens.
_NUM_THREADS = 4


def sample(texts: Iterable[str], max_bytes: int, seed: int) -> list[str]:
    """Up to `max_bytes` of text, in blocks drawn evenly from all of it, in one pass."""
    draw = random.Random(seed)
    # The blocks with the lowest draws, the highest of them on top.
    kept: list[tuple[float, str, int]] = []
    size = 0
    for text in texts:
        for start in range(0, len(text), _BLOCK_CHARACTERS):
            block = text[start : start + _BLOCK_CHARACTERS]
            num_bytes = len(block.encode())
            heappush(kept, (-draw.random(), block, num_bytes))
            size += num_bytes
            while size > max_bytes and len(kept) > 1:
                size -= heappop(kept)[2]
    return [block for _, block, _ in sorted(kept)]


def train(blocks: Iterable[str], options: TrainTokenizer) -> Tokenizer:
    """A new tokenizer; `DataError` where the text does not yield so many tokens, or needs more."""
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_sentences(blocks),
            model_writer=model,
            model_type=options.model_type,
            vocab_size=options.vocab_size,
            # Otherwise the largest possible size comes as an exception's text.
            hard_vocab_limit=False,
            character_coverage=options.character_coverage,
            split_digits=options.split_digits,
            byte_fallback=True,
            # A space spelt in bytes would come back as the symbol.
            required_chars=SPACE_SYMBOL,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=4 * _SENTENCE_CHARACTERS,
            unk_id=0,
            eos_id=1,
            bos_id=-1,
            pad_id=-1,
            num_threads=_NUM_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(_refusal(options, str(error))) from error
    tokenizer = Tokenizer(model.getvalue())
    if tokenizer.vocab_size < options.vocab_size:
        rule = f"must be at most {tokenizer.vocab_size} for so little text"
        remedy = f"set it to {tokenizer.vocab_size}, or prepare more text"
        raise DataError(Mistake("data.tokenizer.vocab_size", options.vocab_size, rule, remedy))
    assert tokenizer.exact, "a trained tokenizer changes the text"
    return tokenizer


def _refusal(options: TrainTokenizer, message: str) -> Mistake:
    needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if needed is None:
        rule = f"must suit this text; SentencePiece says: {message}"
        return Mistake("data.tokenizer", None, rule, "change its options, or prepare more text")
    rule = f"must be at least {needed[1]}: 256 bytes, 2 special tokens, the space and the text's characters"
    remedy = f"set it to {needed[1]} or more, or lower data.tokenizer.character_coverage"
    return Mistake("data.tokenizer.vocab_size", options.vocab_size, rule, remedy)


def _sentences(blocks: Iterable[str]) -> Iterator[str]:
    for block in blocks:
        for sentence in _SENTENCE_ENDS.split(block):
            for start in range(0, len(sentence), _SENTENCE_CHARACTERS):
                yield sentence[start : start + _SENTENCE_CHARACTERS]
