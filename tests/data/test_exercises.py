from collections import Counter
from pathlib import Path

import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.config.loader import validate
from megatron_mep.data.config import DataConfig, Formal, TrainTokenizer
from megatron_mep.data.corpus import prepare
from megatron_mep.data.source import open_source, source_files
from megatron_mep.data.tokenizer import Tokenizer
from tests.data.toy import silent

COPY = {"kind": "formal", "tasks": [{"name": "copy", "letters": 4}], "lengths": [1, 6], "documents": 60}


def texts(**changes: object) -> list[str]:
    source = open_source(Formal.model_validate({**COPY, **changes}))
    documents = list(source.documents())
    assert [document.position for document in documents][-1] == source.total
    return [str(document.text) for document in documents]


def test_documents_are_questions_with_their_answers():
    for text in texts():
        question, _, answer = text.removeprefix("copy:").partition(" =")
        assert question == answer
        assert set(question.split()) <= set("abcd")


def test_lengths_are_equally_frequent_from_the_shortest_to_the_longest():
    lengths = Counter(len(text.rpartition("=")[2].split()) for text in texts(documents=6000))
    assert sorted(lengths) == [1, 2, 3, 4, 5, 6]
    assert all(900 < count < 1100 for count in lengths.values())


def test_tasks_come_in_turn():
    tasks = [{"name": "copy"}, {"name": "parity"}, {"name": "sort"}]
    names = [text.partition(":")[0] for text in texts(tasks=tasks, documents=7)]
    assert names == ["copy", "parity", "sort", "copy", "parity", "sort", "copy"]


def test_the_seed_decides_what_is_asked():
    assert texts() == texts()
    assert texts() != texts(seed=1)


def test_lengths_out_of_order_are_told():
    with pytest.raises(ConfigError, match=r"write \[1, 6\]"):
        validate(DataConfig, {"source": {**COPY, "lengths": [6, 1]}})


def test_a_corpus_of_exercises_is_prepared_and_every_symbol_can_be_one_token(tmp_path: Path):
    source = Formal.model_validate({**COPY, "documents": 400})
    assert source_files(source) == ()
    data = DataConfig(folder=str(tmp_path / "corpus"), source=source, tokenizer=TrainTokenizer(vocab_size=278))
    manifest = prepare(data, report=silent)
    assert manifest.train.num_documents + manifest.validation.num_documents == 400
    tokenizer = Tokenizer.load(tmp_path / "corpus" / "tokenizer.model")
    assert len(tokenizer.encode([" a b c d d a ="])[0]) == 7
