import hashlib
from pathlib import Path

import numpy as np
import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.data import corpus as corpus_module
from megatron_mep.data.config import DataConfig, Files, SentencePieceModel, TrainTokenizer
from megatron_mep.data.corpus import prepare
from megatron_mep.data.manifest import Manifest, Split
from megatron_mep.data.split_writer import SplitWriter
from megatron_mep.data.tokenizer import Tokenizer
from tests.data.toy import corpus, settings, silent, stories


def documents_of(folder: Path, split: str) -> list[np.ndarray]:
    """Read Megatron's format by its definition: a header of 34 bytes, then the documents' lengths."""
    index = (folder / f"{split}.idx").read_bytes()
    num_documents = int.from_bytes(index[18:26], "little")
    lengths = np.frombuffer(index, dtype=np.int32, count=num_documents, offset=34)
    tokens = np.fromfile(folder / f"{split}.bin", dtype=np.uint16)
    assert lengths.sum() == len(tokens)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def texts_of(folder: Path, split: str) -> list[str]:
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    return [tokenizer.decode(document) for document in documents_of(folder, split)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_document_is_there_once_in_order_with_its_end(tmp_path):
    folder, manifest = corpus(tmp_path)
    order = {text: number for number, text in enumerate(stories(200))}
    places = {split: [order[text] for text in texts_of(folder, split)] for split in ("train", "validation")}
    assert all(numbers == sorted(numbers) for numbers in places.values())
    assert sorted(places["train"] + places["validation"]) == list(range(200))
    for split in ("train", "validation"):
        for document in documents_of(folder, split):
            assert np.flatnonzero(document == manifest.end_of_document).tolist() == [len(document) - 1]


def test_the_manifest_counts_what_was_written(tmp_path):
    folder, manifest = corpus(tmp_path)
    for split, written in (("train", manifest.train), ("validation", manifest.validation)):
        texts, documents = texts_of(folder, split), documents_of(folder, split)
        assert written == Split(
            num_documents=len(texts),
            num_tokens=sum(map(len, documents)),
            num_bytes=sum(len(text.encode()) for text in texts),
        )
    [source] = manifest.source_files
    text = Path(source.path).read_bytes()
    assert (source.num_bytes, source.sha256) == (len(text), hashlib.sha256(text).hexdigest())
    assert Manifest.load(folder) == manifest
    assert Manifest.load(folder).fingerprint == manifest.fingerprint


def test_the_seed_alone_chooses_the_validation_documents(tmp_path):
    data = settings(tmp_path)
    held_out = {}
    for name, seed, num_threads, vocab_size in [("a", 0, 1, 320), ("b", 0, 3, 300), ("c", 1, 1, 320)]:
        folder = tmp_path / name
        tokenizer = TrainTokenizer(vocab_size=vocab_size)
        changed = {"folder": str(folder), "seed": seed, "num_threads": num_threads, "tokenizer": tokenizer}
        prepare(data.model_copy(update=changed), silent)
        held_out[name] = texts_of(folder, "validation")
    assert held_out["a"] == held_out["b"] != held_out["c"]
    assert 20 < len(held_out["a"]) < 60


def test_threads_change_nothing(tmp_path):
    data = settings(tmp_path)
    folders = [tmp_path / str(num_threads) for num_threads in (1, 4)]
    for folder, num_threads in zip(folders, (1, 4), strict=True):
        prepare(data.model_copy(update={"folder": str(folder), "num_threads": num_threads}), silent)
    assert contents(folders[0]) == contents(folders[1])


def test_batches_of_documents_change_nothing(tmp_path, monkeypatch):
    folder, _ = corpus(tmp_path)
    monkeypatch.setattr("megatron_mep.data.encoding._BATCH_CHARACTERS", 100)
    data = settings(tmp_path).model_copy(update={"folder": str(tmp_path / "b")})
    prepare(data, silent)
    assert contents(folder) == contents(tmp_path / "b")


def test_the_tokenizer_sees_nothing_of_the_validation_split(tmp_path):
    folder, _ = corpus(tmp_path)
    held_out = set(texts_of(folder, "validation"))
    marked = [text + (" \u00df" if text in held_out else " \u00fc") for text in stories(200)]
    (tmp_path / "stories.txt").write_text("\n".join(marked), encoding="utf-8")
    data = settings(tmp_path)
    (tmp_path / "stories.txt").write_text("\n".join(marked), encoding="utf-8")
    options = TrainTokenizer(vocab_size=320, character_coverage=1.0)
    prepare(data.model_copy(update={"folder": str(tmp_path / "marked"), "tokenizer": options}), silent)
    tokenizer = Tokenizer.load(tmp_path / "marked" / "tokenizer.model")
    assert set(texts_of(tmp_path / "marked", "validation")) == {text for text in marked if text.endswith("\u00df")}
    assert [len(tokens) for tokens in tokenizer.encode(["\u00fc", "\u00df"])] == [1, 2]


def test_documents_left_out_are_counted_by_reason(tmp_path):
    data = settings(tmp_path)
    with (tmp_path / "stories.txt").open("ab") as text:
        text.write(b"\n\n\xff\n")
    lines: list[str] = []
    manifest = prepare(data, lines.append)
    assert manifest.skipped == {"empty": 2, "not valid Unicode": 1}
    assert "2 empty, 1 not valid Unicode" in lines[-1]


@pytest.mark.parametrize("reason", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_a_preparation_that_fails(tmp_path, monkeypatch, reason):
    def fail(self):
        raise reason

    data = settings(tmp_path)
    monkeypatch.setattr(SplitWriter, "finish", fail)
    with pytest.raises(reason):
        prepare(data, silent)
    assert [path.name for path in tmp_path.iterdir()] == ["stories.txt"]


def test_the_same_corpus_is_left_as_it_is(tmp_path, monkeypatch):
    _, manifest = corpus(tmp_path)
    monkeypatch.setattr(corpus_module, "open_source", None)
    lines: list[str] = []
    assert prepare(settings(tmp_path).model_copy(update={"num_threads": 1}), lines.append) == manifest
    assert len(lines) == 1
    assert "already" in lines[0]


def test_another_corpus_is_refused_naming_what_differs_unless_forced(tmp_path):
    folder, _ = corpus(tmp_path)
    before = contents(folder)
    other = settings(tmp_path).model_copy(update={"validation_fraction": 0.3, "seed": 1, "tokenizer": TrainTokenizer()})
    with pytest.raises(DataError) as caught:
        prepare(other, silent)
    keys = {mistake.key: mistake.value for mistake in caught.value.mistakes}
    assert keys == {"data.tokenizer.vocab_size": 4096, "data.validation_fraction": 0.3, "data.seed": 1}
    assert all("--force" in mistake.remedy for mistake in caught.value.mistakes)
    assert contents(folder) == before
    other = other.model_copy(update={"tokenizer": TrainTokenizer(vocab_size=300)})
    manifest = prepare(other, silent, force=True)
    assert manifest.vocab_size == 300
    assert Manifest.load(folder) == manifest


def test_text_that_changed_is_another_corpus(tmp_path):
    corpus(tmp_path)
    data = settings(tmp_path, num_documents=201)
    with pytest.raises(DataError, match=r"1 of its files changed.*stories\.txt"):
        prepare(data, silent)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_something_else_is_never_replaced(tmp_path, force):
    data = settings(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"set data\.folder to another folder"):
        prepare(data, silent, force=force)
    assert (tmp_path / "corpus" / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_may_be_there(tmp_path):
    (tmp_path / "corpus").mkdir()
    folder, manifest = corpus(tmp_path)
    assert Manifest.load(folder) == manifest


def test_no_text_at_all_is_an_error_that_counts(tmp_path):
    data = settings(tmp_path)
    (tmp_path / "stories.txt").write_bytes(b"\n\n\xff\n")
    with pytest.raises(DataError, match=r"3 documents read, none kept \(2 empty, 1 not valid Unicode\)"):
        prepare(data, silent)


def test_both_splits_must_have_documents(tmp_path):
    text = tmp_path / "one.txt"
    text.write_text("one document " * 100)
    data = DataConfig(folder=str(tmp_path / "corpus"), source=Files(kind="files", paths=(str(text),)))
    for fraction in (0.0001, 0.9999):
        with pytest.raises(DataError, match=r"both splits.*one_document_per: line"):
            prepare(data.model_copy(update={"validation_fraction": fraction}), silent)
    assert not (tmp_path / "corpus").exists()


def test_a_given_tokenizer_is_taken_as_it_is(tmp_path):
    folder, trained = corpus(tmp_path)
    model = tmp_path / "given.model"
    model.write_bytes((folder / "tokenizer.model").read_bytes())
    given = SentencePieceModel(kind="sentencepiece", path=str(model))
    data = settings(tmp_path).model_copy(update={"folder": str(tmp_path / "b"), "tokenizer": given})
    manifest = prepare(data, silent)
    assert manifest.tokenizer_sha256 == trained.tokenizer_sha256
    for name in ("tokenizer.model", "train.bin", "train.idx", "validation.bin", "validation.idx"):
        assert (tmp_path / "b" / name).read_bytes() == (folder / name).read_bytes()
    model.write_bytes(b"another")
    with pytest.raises(DataError, match=r"1 of its files changed.*given\.model"):
        prepare(data, silent)
    model.unlink()
    with pytest.raises(DataError, match=r"1 of its files changed.*given\.model"):
        prepare(data, silent)


def test_an_unfit_tokenizer_is_refused_before_any_text_is_read(tmp_path, monkeypatch):
    (tmp_path / "no.model").write_bytes(b"not a model")
    given = SentencePieceModel(kind="sentencepiece", path=str(tmp_path / "no.model"))
    monkeypatch.setattr(corpus_module, "open_source", None)
    with pytest.raises(DataError, match="must be a SentencePiece model"):
        prepare(settings(tmp_path).model_copy(update={"tokenizer": given}), silent)
