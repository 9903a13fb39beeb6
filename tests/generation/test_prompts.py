import io
import sys
from pathlib import Path

import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.generation.prompts import STANDARD_INPUT, read_prompts


def encode(text: str) -> list[int]:
    return list(text.strip().encode())


def test_texts_come_first_and_a_file_is_one_prompt(tmp_path: Path):
    file = tmp_path / "long.txt"
    file.write_bytes("one\r\ntwö \n\n".encode())
    prompts = read_prompts(["b", "a"], [file], encode)
    assert [prompt.text for prompt in prompts] == ["b", "a", "one\r\ntwö \n"]
    assert [prompt.place for prompt in prompts] == ["--prompt", "--prompt", str(file)]
    assert prompts[1].tokens == (97,)


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once\r\n")))
    (prompt,) = read_prompts([], [STANDARD_INPUT], encode)
    assert (prompt.place, prompt.text) == ("standard input", "Once")


def test_all_that_cannot_be_continued_is_told_at_once(tmp_path: Path):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    files = [tmp_path / name for name in ("absent.txt", "empty.txt", "latin.txt", ".")]
    with pytest.raises(DataError) as caught:
        read_prompts(["fine", ""], files, encode)
    told = {mistake.key: mistake.rule for mistake in caught.value.mistakes}
    assert told.keys() == {"--prompt", *map(str, files)}
    assert told["--prompt"].startswith("must hold at least one token")
    assert told[str(files[0])] == "cannot be read (No such file or directory)"
    assert told[str(files[1])].startswith("must hold at least one token")
    assert told[str(files[2])].startswith("must hold UTF-8")
    assert told[str(files[3])] == "cannot be read (Is a directory)"
    assert all(mistake.remedy for mistake in caught.value.mistakes)


def test_a_prompt_that_the_tokenizer_makes_nothing_of_is_refused():
    with pytest.raises(DataError, match="--prompt = '  ': must hold at least one token"):
        read_prompts(["  "], [], encode)


def test_no_prompt_at_all_is_told():
    with pytest.raises(DataError, match="--prompt: is required; give a text"):
        read_prompts([], [], encode)
