"""Turns text into tokens and back with a SentencePiece model, and counts the bytes that tokens stand for."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

from megatron_mep.config.errors import DataError, Mistake

# SentencePiece writes a space as this letter, and so turns the letter itself into a space.
SPACE_SYMBOL = "\u2581"

# Whatever SentencePiece may normalise away: white space at either end and in runs, compositions, rare letters.
_PROBE = "  a \t\n\r\n  \u00e9e\u0301 \ufb01 \u2460\u3000\u4e2d\U0001f600\u2047\0 "


class Tokenizer:
    """A SentencePiece model.

    Its `eod` and `unique_identifiers` are what Megatron's datasets ask of a tokenizer; the identity is that of the
    content, so that a corpus may be moved.
    """

    def __init__(self, model: bytes) -> None:
        """`model` is the content of a `.model` file."""
        self.model = model
        self.sha256 = hashlib.sha256(model).hexdigest()
        self._processor = SentencePieceProcessor(model_proto=model)
        self.vocab_size: int = self._processor.get_piece_size()
        self.eod: int = self._processor.eos_id()
        self.unique_identifiers = {"sha256": self.sha256}
        self.exact = self._processor.decode(self._processor.encode(_PROBE)) == _PROBE
        self._space_symbol = self._spelt_in_bytes(SPACE_SYMBOL)
        self.num_bytes = np.array([len(self.spelling(token)) for token in range(self.vocab_size)], dtype=np.int64)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a model; `DataError` where it cannot be read, or has no token that ends a document."""
        try:
            tokenizer = cls(path.read_bytes())
        except (OSError, RuntimeError) as error:
            rule = f"must be a SentencePiece model: {error}"
            raise DataError(Mistake(str(path), None, rule, "correct data.tokenizer.path")) from error
        if tokenizer.eod < 0:
            rule = "must define an end-of-sentence piece (eos), which ends each document"
            raise DataError(Mistake(str(path), None, rule, "train it again with eos_id set, or choose another"))
        return tokenizer

    def encode(self, texts: Sequence[str], num_threads: int = 1) -> list[NDArray[np.int32]]:
        """The tokens of each text, without an end of document."""
        if not self.exact:
            return self._encode(list(texts), num_threads)
        parts = [text.split(SPACE_SYMBOL) for text in texts]
        encoded = iter(self._encode(list(chain.from_iterable(parts)), num_threads))
        return [self._joined(islice(encoded, len(part))) for part in parts]

    def decode(self, tokens: NDArray[np.integer]) -> str:
        """The text of tokens; ends of documents leave no trace."""
        return self._processor.decode(np.asarray(tokens).tolist())

    def bytes_of(self, tokens: NDArray[np.integer]) -> int:
        """How many bytes of UTF-8 the tokens stand for: an end of document none, a byte token one.

        Equal to the length of the text exactly where the tokenizer is `exact`.
        """
        return int(self.num_bytes[tokens].sum())

    def spelling(self, token: int) -> bytes:
        """The bytes of UTF-8 that a token stands for, which need not be whole letters: of an end of document none."""
        processor = self._processor
        if processor.is_control(token) or processor.is_unknown(token) or processor.is_unused(token):
            return b""
        piece = processor.id_to_piece(token)
        if processor.is_byte(token):
            return bytes.fromhex(piece.removeprefix("<0x").removesuffix(">"))
        return piece.replace(SPACE_SYMBOL, " ").encode()

    def _encode(self, texts: list[str], num_threads: int) -> list[NDArray[np.int32]]:
        return self._processor.encode(texts, return_type="numpy", num_threads=num_threads)

    def _joined(self, parts: Iterator[NDArray[np.int32]]) -> NDArray[np.int32]:
        first = next(parts)
        return np.concatenate([first, *(piece for part in parts for piece in (self._space_symbol, part))])

    def _spelt_in_bytes(self, text: str) -> NDArray[np.int32]:
        pieces = [f"<0x{byte:02X}>" for byte in text.encode()]
        return np.array([self._processor.piece_to_id(piece) for piece in pieces], dtype=np.int32)
