"""Prompts as the command line gives them: texts, files, or what comes in on standard input."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron_mep.config.errors import DataError, Mistake

STANDARD_INPUT = Path("-")


@dataclass(frozen=True)
class Prompt:
    """A text to be continued."""

    place: str
    """The option or the file that it came from."""
    text: str
    tokens: tuple[int, ...]


def read_prompts(texts: Iterable[str], files: Iterable[Path], encode: Callable[[str], Iterable[int]]) -> list[Prompt]:
    """The texts, then the whole of each file without the line end that closes it; `-` is standard input.

    A `DataError` tells all of them that cannot be continued.
    """
    given = [("--prompt", text) for text in texts]
    mistakes: list[Mistake] = []
    for file in files:
        try:
            given.append(("standard input" if file == STANDARD_INPUT else str(file), _content(file)))
        except OSError as error:
            mistakes.append(Mistake(str(file), None, f"cannot be read ({error.strerror})", "check the path"))
        except UnicodeDecodeError as error:
            mistakes.append(Mistake(str(file), None, f"must hold UTF-8 ({error})", "convert it"))
    prompts = [Prompt(place, text, tuple(encode(text))) for place, text in given]
    mistakes += [
        Mistake(prompt.place, prompt.text, "must hold at least one token: a model continues what it has read",
                "give some text")
        for prompt in prompts
        if not prompt.tokens
    ]  # fmt: skip
    if not prompts and not mistakes:
        mistakes = [Mistake("--prompt", None, "is required", "give a text, or a file with --prompt-file (- for stdin)")]
    if mistakes:
        raise DataError(mistakes)
    return prompts


def _content(file: Path) -> str:
    content = sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()
    return content.decode().removesuffix("\n").removesuffix("\r")
