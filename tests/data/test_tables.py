import datasets
import huggingface_hub
import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.data.config import Hub
from megatron_mep.data.documents import Skip
from megatron_mep.data.tables import open_hub


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"id": 1, "text": "one"}\n{"id": 2, "text": null}\n{"id": 3, "text": " "}\n')
    return str(folder)


def test_rows_are_documents(dataset):
    source = open_hub(Hub(kind="hub", name=dataset))
    documents = list(source.documents())
    assert [document.text for document in documents] == ["one", Skip.NO_TEXT, Skip.EMPTY]
    assert [document.position for document in documents] == [1, 2, 3]
    assert source.total == 3
    assert documents == list(source.documents())


def test_a_slice_of_a_split_is_read(dataset):
    source = open_hub(Hub(kind="hub", name=dataset, split="train[:1]"))
    assert [document.text for document in source.documents()] == ["one"]


def test_a_missing_column_names_those_there_are(dataset):
    with pytest.raises(DataError, match=r"'id', 'text'.*did you mean 'text'"):
        open_hub(Hub(kind="hub", name=dataset, column="texts"))


@pytest.mark.parametrize("wrong", [{"split": "tran"}, {"subset": "en"}])
def test_a_wrong_part_names_those_there_are(dataset, wrong):
    with pytest.raises(DataError, match=r"\['(train|default)'\]"):
        open_hub(Hub(kind="hub", name=dataset, **wrong))


def test_without_network_the_remedy_is_a_machine_that_has_it():
    with pytest.raises(DataError, match="machine with network"):
        open_hub(Hub(kind="hub", name="nobody/nothing"))
