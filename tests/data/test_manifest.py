import shutil

import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.data.corpus import prepare
from megatron_mep.data.manifest import Manifest
from tests.data.toy import corpus, settings, silent


def test_an_absent_corpus_is_to_be_prepared(tmp_path):
    with pytest.raises(DataError, match="run `mep prepare RUN`"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.model", "train.bin", "train.idx", "validation.bin", "validation.idx"])
def test_a_missing_or_cut_file_is_named(tmp_path, name):
    folder, _ = corpus(tmp_path, num_documents=60)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(DataError, match=f"{name}: must have {len(content)} bytes"):
        Manifest.load(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name}: is missing"):
        Manifest.load(folder)


def test_another_tokenizer_of_the_same_size_is_noticed(tmp_path):
    folder, _ = corpus(tmp_path, num_documents=60)
    model = bytearray((folder / "tokenizer.model").read_bytes())
    model[100] ^= 1
    (folder / "tokenizer.model").write_bytes(model)
    with pytest.raises(DataError, match="is another"):
        Manifest.load(folder)


@pytest.mark.parametrize("content", ["", "{}", '{"format": 2}'])
def test_an_unreadable_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read"):
        Manifest.load(tmp_path)


def test_the_fingerprint_moves_with_the_folder_and_tells_corpora_apart(tmp_path):
    folder, manifest = corpus(tmp_path, num_documents=60)
    shutil.move(folder, tmp_path / "moved")
    assert Manifest.load(tmp_path / "moved").fingerprint == manifest.fingerprint
    assert prepare(settings(tmp_path, 60).model_copy(update={"seed": 1}), silent).fingerprint != manifest.fingerprint
