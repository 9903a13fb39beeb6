"""Documents of random symbols with copies in them: where they look, how long they are, and what is drawn."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.config.loader import validate
from megatron_mep.data.config import Copies, DataConfig, TrainTokenizer
from megatron_mep.data.corpus import prepare
from megatron_mep.data.source import open_source, source_files
from megatron_mep.data.tokenizer import Tokenizer
from tests.data.toy import silent

MANY = tuple(map(chr, range(0x10000, 0x110000)))
"""So many symbols that one which comes again was copied, and hardly drawn again."""


def texts(**options: object) -> list[str]:
    source = open_source(Copies.model_validate({"kind": "copies", **options}))
    documents = list(source.documents())
    assert documents == list(source.documents())
    assert [document.position for document in documents][-1] == source.total
    return [str(document.text) for document in documents]


def stretches(text: str) -> list[tuple[int, int]]:
    """Of each stretch how many symbols back it looks, 0 where it is fresh, and its symbols."""
    last: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    for place, symbol in enumerate(text):
        back = place - last[symbol] if symbol in last else 0
        found.append((back, found.pop()[1] + 1) if found and found[-1][0] == back else (back, 1))
        last[symbol] = place
    return found


def test_copies_and_fresh_symbols_are_as_many_and_as_far_apart_as_stated():
    (text,) = texts(
        symbols=MANY, fewest=len(MANY), documents=1, length=2000, fresh=[3, 5], copied=[6, 7], distance=[20, 22]
    )
    found = stretches(text)
    # nothing is copied before there are 20 symbols; a copy of a copy looks back to the nearer of the two
    first = next(place for place, (back, _) in enumerate(found) if back)
    assert {size for back, size in found[first + 1 : -1] if not back} == {3, 4, 5}
    copies = [size for back, size in found[:-1] if back in {20, 21, 22}]
    assert {6, 7} == set(copies)
    assert len(copies) > 100


def test_a_copy_longer_than_its_distance_repeats_itself():
    (text,) = texts(
        symbols=MANY, fewest=len(MANY), documents=1, length=11, fresh=[3, 3], copied=[8, 8], distance=[3, 3]
    )
    assert text == (text[:3] * 4)[:11]


def test_distances_are_even_by_their_logarithm():
    (text,) = texts(
        symbols=MANY, fewest=len(MANY), documents=1, length=20_000, fresh=[9, 9], copied=[1, 1], distance=[1, 8]
    )
    distances = Counter(back for back, _ in stretches(text) if back)
    expected = {distance: 2000 * math.log1p(1 / distance) / math.log(9) for distance in range(1, 9)}
    assert {distance: distances[distance] for distance in expected} == pytest.approx(expected, rel=0.3)


def test_symbols_may_be_words():
    (text,) = texts(symbols=[" one", " two", "."], fewest=3, documents=1, length=50)
    assert len(re.findall(r" one| two|\.", text)) == 50
    assert not re.sub(r" one| two|\.", "", text)


def test_documents_have_their_number_and_length():
    found = texts(documents=5, length=100)
    assert [len(text) for text in found] == [100] * 5
    assert len(set(found)) == 5


def test_a_document_has_a_part_of_the_symbols():
    numbers = [len(set(text)) for text in texts(documents=300, symbols=tuple("abc efgh"), fewest=3)]
    assert set(numbers) == {3, 4, 5, 6, 7, 8}
    assert numbers.count(3) > numbers.count(7)


def test_the_seed_decides_what_is_drawn():
    assert texts(documents=3) == texts(documents=3)
    assert texts(documents=3) != texts(documents=3, seed=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"distance": [9, 4]}, r"source\.distance.*write \[4, 9\]"),
        ({"symbols": ["a", "b", "a"], "fewest": 2}, "must be different ones"),
        ({"symbols": ["a", "b", "c"]}, "fewest=8 must be at most 3"),
    ],
)
def test_options_that_contradict_each_other_are_told(options: dict[str, object], told: str):
    with pytest.raises(ConfigError, match=told):
        validate(DataConfig, {"source": {"kind": "copies", **options}})


def test_a_corpus_of_copies_has_a_token_for_every_character(tmp_path: Path):
    source = Copies(kind="copies", documents=40, length=1000)
    assert source_files(source) == ()
    data = DataConfig(folder=str(tmp_path / "corpus"), source=source, tokenizer=TrainTokenizer(vocab_size=324))
    manifest = prepare(data, report=silent)
    num_documents = manifest.train.num_documents + manifest.validation.num_documents
    assert num_documents == 40
    assert manifest.train.num_tokens + manifest.validation.num_tokens == 40 * 1001
    tokenizer = Tokenizer.load(tmp_path / "corpus" / "tokenizer.model")
    assert len(tokenizer.encode(["The pass key is 12345."])[0]) == 22
