"""Reads documents from a column of Parquet files and of Hugging Face datasets, a few rows at a time."""

from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset, load_dataset
from pyarrow import Array
from pyarrow.parquet import ParquetFile

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.config import Hub
from megatron_mep.data.documents import Document, Skip, Source, missing_column, text_of

_ROWS_AT_ONCE = 256


def parquet(path: Path, column: str) -> Iterator[Document]:
    """One document a row."""
    with ParquetFile(path) as file:
        if column not in file.schema_arrow.names:
            raise missing_column(column, file.schema_arrow.names, str(path))
        size, num_rows, row = path.stat().st_size, file.metadata.num_rows, 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[column]):
            for text in _texts(batch.column(0)):
                row += 1
                yield Document(text, size * row // num_rows)


def open_hub(hub: Hub) -> Source:
    """The rows of a dataset, downloaded where it is not in the cache yet, and read from disk."""
    dataset = _load(hub)
    if hub.column not in dataset.column_names:
        raise missing_column(hub.column, dataset.column_names, hub.name)
    return Source(len(dataset), lambda: _rows(dataset, hub.column))


def _load(hub: Hub) -> Dataset:
    try:
        return load_dataset(hub.name, hub.subset, split=hub.split, revision=hub.revision)
    except OSError as error:
        remedy = "check the name, or run `mep prepare RUN` on a machine with network; training then needs none"
        raise DataError(Mistake("data.source.name", hub.name, f"must be reachable: {error}", remedy)) from error
    except ValueError as error:
        remedy = "correct data.source.subset or data.source.split"
        raise DataError(
            Mistake("data.source.name", hub.name, f"must have what is asked of it: {error}", remedy)
        ) from error


def _rows(dataset: Dataset, column: str) -> Iterator[Document]:
    row = 0
    for table in dataset.select_columns([column]).with_format("arrow").iter(_ROWS_AT_ONCE):
        for text in _texts(table.column(column)):
            row += 1
            yield Document(text, row)


def _texts(cells: Array) -> Iterator[str | Skip]:
    for cell in cells:
        try:
            value = cell.as_py()
        except UnicodeDecodeError:
            yield Skip.NOT_UNICODE
        else:
            yield text_of(value)
