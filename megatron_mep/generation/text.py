"""Text as it is generated: tokens may end within a letter, which UTF-8 spells in up to four bytes."""

import codecs
from collections.abc import Callable


class TextStream:
    """Turns tokens into text, each letter as soon as it is whole.

    Bytes that spell no letter, as a model is free to choose them, become `\\xNN`: nothing is lost, and every letter of
    the text is one that the model wrote.
    """

    def __init__(self, spelling: Callable[[int], bytes]) -> None:
        """`spelling` gives the bytes of a token."""
        self._spelling = spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def add(self, token: int) -> str:
        """The letters that the token completes."""
        return self._decoder.decode(self._spelling(token))

    def end(self) -> str:
        """What is left of a letter that no token completed."""
        return self._decoder.decode(b"", final=True)
