import bz2
import gzip
import lzma
import sysconfig
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from megatron_mep.config.errors import DataError
from megatron_mep.data.config import Files, PythonStandardLibrary
from megatron_mep.data.documents import Skip
from megatron_mep.data.source import open_source, source_files


def read(folder: Path, *patterns: str, **options: str) -> list[str | Skip]:
    source = open_source(Files(kind="files", paths=tuple(str(folder / pattern) for pattern in patterns), **options))
    documents = list(source.documents())
    positions = [document.position for document in documents]
    assert positions == sorted(positions)
    assert positions[-1:] in ([], [source.total])
    assert documents == list(source.documents())
    return [document.text for document in documents]


def test_a_text_file_is_a_document_byte_for_byte(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n\n three \xc3\xa9")
    assert read(tmp_path, "a.txt") == ["one\r\ntwo\n\n three \u00e9"]


def test_a_text_file_may_hold_a_document_a_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\n  \ntwo \xff\n three\nfour\xe2\x80\xa8five")
    texts = read(tmp_path, "a.txt", one_document_per="line")
    assert texts == ["one", Skip.EMPTY, Skip.EMPTY, Skip.NOT_UNICODE, " three", "four\u2028five"]


def test_undecodable_and_empty_files_are_left_out_with_their_reason(tmp_path):
    for name, content in {"a": b"", "b": b"\xff\xfe", "c": b"text", "d": b" \n\t"}.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    assert read(tmp_path, "*.txt") == [Skip.EMPTY, Skip.NOT_UNICODE, "text", Skip.EMPTY]


def test_json_lines_are_left_out_with_their_reason(tmp_path):
    rows = [
        b'{"text": "one\\n", "id": 1}',
        b'{"text": ""}',
        b'{"text": null}',
        b'{"other": "x"}',
        b'{"text": 5}',
        b'{"text": "half a pair \\ud800"}',
        b'{"text": "a whole one \\ud83d\\ude00"}',
        b'{"text": "cut',
        b'["text"]',
        b'{"text": "\xff"}',
        b"",
        b'{"text": "last"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(rows))
    assert read(tmp_path, "a.jsonl") == [
        "one\n",
        Skip.EMPTY,
        Skip.NO_TEXT,
        Skip.NO_TEXT,
        Skip.NO_TEXT,
        Skip.NOT_UNICODE,
        "a whole one \U0001f600",
        Skip.NOT_JSON,
        Skip.NOT_JSON,
        Skip.NOT_UNICODE,
        Skip.EMPTY,
        "last",
    ]


def test_parquet_rows_are_documents(tmp_path):
    rows = [f"row {number}" for number in range(600)] + [None, ""]
    parquet.write_table(pyarrow.table({"id": range(602), "body": rows}), tmp_path / "a.parquet")
    expected = [*rows[:600], Skip.NO_TEXT, Skip.EMPTY]
    assert read(tmp_path, "a.parquet", column="body") == expected


def test_parquet_rows_that_are_no_unicode_are_left_out(tmp_path):
    rows = pyarrow.array([b"good", b"\xff"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet")
    assert read(tmp_path, "a.parquet") == ["good", Skip.NOT_UNICODE]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip), ("bz2", bz2), ("xz", lzma)])
def test_compressed_files_are_read(tmp_path, suffix, compress):
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(compress.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    assert read(tmp_path, f"a.jsonl.{suffix}") == ["one", "two"]


def test_files_come_in_the_order_of_patterns_then_names_and_once(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "odd[1].txt"):
        (tmp_path / name).write_text(name)
    assert read(tmp_path, "b.txt", "*.txt", "deep/**/*.txt") == ["b.txt", "a.txt", "odd[1].txt", "deep/er/c.txt"]
    assert read(tmp_path, "odd[1].txt") == ["odd[1].txt"]


def test_every_path_that_matches_nothing_is_named(tmp_path):
    with pytest.raises(DataError) as caught:
        read(tmp_path, "absent.txt", "*.jsonl", "")
    assert len(caught.value.mistakes) == 3
    assert all(mistake.rule == "must match a file" for mistake in caught.value.mistakes)


def test_a_missing_column_names_those_there_are(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "x", "meta": 1}\n')
    parquet.write_table(pyarrow.table({"content": ["x"], "meta": [1]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(DataError, match=r"'content', 'meta'.*did you mean 'content'"):
            read(tmp_path, name, column="contents")


def test_a_suffix_that_says_nothing_needs_a_format(tmp_path):
    (tmp_path / "a.data").write_text('{"text": "one"}')
    with pytest.raises(DataError, match=r"data\.source\.format"):
        read(tmp_path, "a.data")
    assert read(tmp_path, "a.data", format="jsonl") == ["one"]
    assert read(tmp_path, "a.data", format="text") == ['{"text": "one"}']


@pytest.mark.parametrize("name", ["a.txt.gz", "a.parquet", "a.txt.xz", "a.txt.bz2"])
def test_a_broken_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"neither compressed nor a table")
    with pytest.raises(DataError, match=f"{name}: must be readable"):
        read(tmp_path, name)


def test_a_cut_compressed_file_is_named(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text " * 100)[:-9])
    with pytest.raises(DataError, match=r"a\.txt\.gz: must be readable"):
        read(tmp_path, "a.txt.gz")


def test_a_compression_without_its_package_is_not_read_as_text(tmp_path, monkeypatch):
    monkeypatch.setattr("megatron_mep.data.text_files.compr", {None: None})
    (tmp_path / "a.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(DataError, match="zstd"):
        read(tmp_path, "a.txt.zst")


def test_the_standard_library_is_its_modules_without_tests():
    names = [path.relative_to(sysconfig.get_path("stdlib")) for path in source_files(PythonStandardLibrary())]
    assert names == sorted(names)
    assert {Path("argparse.py"), Path("json/decoder.py")} <= set(names)
    assert not any({"test", "site-packages"} & set(name.parts) or name.suffix != ".py" for name in names)


def test_a_small_standard_library_is_within_its_limit_and_always_the_same():
    files = source_files(PythonStandardLibrary(max_bytes=300_000))
    assert 250_000 < sum(path.stat().st_size for path in files) <= 300_000
    assert files == source_files(PythonStandardLibrary(max_bytes=300_000))
    assert len({path.name[0] for path in files}) > 5


def test_a_large_file_is_never_held_in_memory(tmp_path):
    row = b'{"text": "' + b"x" * 1000 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(row * 8000)
    documents = open_source(Files(kind="files", paths=(str(tmp_path / "a.jsonl"),))).documents()
    tracemalloc.start()
    assert sum(len(document.text) for document in documents) == 8_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
