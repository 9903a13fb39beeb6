import json
from pathlib import Path
from typing import Any

import pytest

from megatron_mep.harness.length import HarnessError
from megatron_mep.harness.options import no_chat_template, samples, settings


def test_a_value_means_what_it_means_to_the_harness() -> None:
    pytest.importorskip("lm_eval", reason="needs pip install 'megatron-mep[harness]'")
    texts = ["tokenizer=my/model,max_seq_lengths=[4096,8192]", '{"deep": {"a": 1}, "tokenizer": "other"}', "do=false"]
    expected = {"tokenizer": "other", "max_seq_lengths": [4096, 8192], "deep": {"a": 1}, "do": False}
    assert settings("--metadata", texts) == expected
    assert settings("--metadata", []) == {}


@pytest.mark.parametrize("text", ["tokenizer", "a=1,b", "{'a': 1}", '{"a": 1'])
def test_what_is_no_setting_is_told(text: str) -> None:
    pytest.importorskip("lm_eval", reason="needs pip install 'megatron-mep[harness]'")
    with pytest.raises(HarnessError, match=r"--gen-kwargs = .*must be key=value,key=value or a JSON object") as caught:
        settings("--gen-kwargs", [text])
    assert caught.value.mistakes[0].value == text


def test_questions_are_read_from_the_line_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "samples.json"
    file.write_text('{"a": [3, 0, 3], "b": [1]}')
    assert samples(file.read_text()) == samples(str(file)) == {"a": [0, 3], "b": [1]}


@pytest.mark.parametrize("text", ["absent.json", "[1, 2]", "{a: [1]}"])
def test_what_names_no_questions_is_told(text: str) -> None:
    with pytest.raises(HarnessError, match=r"--samples = .*must be a JSON object of tasks"):
        samples(text)


@pytest.mark.parametrize("numbers", [[], 3, [-1], ["1"], [True], [0.5]])
def test_numbers_of_questions_are_whole(numbers: Any) -> None:
    with pytest.raises(HarnessError, match="--samples = 'a': must be a list of the numbers of questions"):
        samples(json.dumps({"a": numbers}))


@pytest.mark.parametrize(("name", "told"), [("", "--apply-chat-template: cannot"), ("rag", "template = 'rag': cannot")])
def test_a_chat_template_is_refused(name: str, told: str) -> None:
    no_chat_template(None)
    with pytest.raises(HarnessError, match=told):
        no_chat_template(name)
