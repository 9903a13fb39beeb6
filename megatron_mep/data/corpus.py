"""Prepares a corpus: from the text that a run file names to a folder that training reads."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from megatron.core.datasets.indexed_dataset import DType

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.census import Census
from megatron_mep.data.config import DataConfig, SentencePieceModel
from megatron_mep.data.encoding import train_tokenizer, write_splits
from megatron_mep.data.folder import written_whole
from megatron_mep.data.manifest import MANIFEST, TOKENIZER, Manifest, SourceFile, settings_of
from megatron_mep.data.source import open_source, source_files
from megatron_mep.data.tokenizer import Tokenizer


def prepare(data: DataConfig, report: Callable[[str], None], force: bool = False) -> Manifest:
    """Write the corpus of a run file into `data.folder`, whole or not at all.

    A corpus prepared from the same settings and files stays as it is; `force` replaces any corpus.
    """
    folder = Path(data.folder).expanduser()
    files = _files_of(data)
    _refuse_foreign(folder)
    if (folder / MANIFEST).is_file() and not force:
        manifest = Manifest.load(folder)
        manifest.refuse_other(data, {str(path): path.stat().st_size for path in files if path.is_file()})
        report(f"{folder} holds this corpus already: {manifest.summary}")
        return manifest
    try:
        with written_whole(folder, replace=force) as partial:
            manifest = _write(data, files, partial, report)
    except FileExistsError as error:
        rule = "must stay empty while a corpus is prepared; something else wrote there"
        raise DataError(Mistake("data.folder", str(folder), rule, "run `mep prepare RUN` again")) from error
    report(f"wrote {folder}: {manifest.summary}")
    return manifest


def _write(data: DataConfig, files: tuple[Path, ...], folder: Path, report: Callable[[str], None]) -> Manifest:
    if isinstance(data.tokenizer, SentencePieceModel):
        # Before the source is opened: an unfit tokenizer shall not cost a download.
        tokenizer = Tokenizer.load(Path(data.tokenizer.path))
        source = open_source(data.source)
    else:
        source = open_source(data.source)
        census = Census(data.seed, data.validation_fraction)
        tokenizer = train_tokenizer(source, census, data.tokenizer, data.seed, report)
    if not tokenizer.exact:
        report("this tokenizer does not give every text back unchanged; bits per byte are of the text it gives back")
    (folder / TOKENIZER).write_bytes(tokenizer.model)
    census = Census(data.seed, data.validation_fraction)
    train, validation = write_splits(source, census, tokenizer, folder, data.num_threads, report)
    manifest = Manifest(
        settings=settings_of(data),
        source_files=tuple(SourceFile.of(path) for path in files),
        train=train,
        validation=validation,
        skipped=dict(census.skipped),
        vocab_size=tokenizer.vocab_size,
        token_dtype=DType.optimal_dtype(tokenizer.vocab_size).__name__,
        end_of_document=tokenizer.eod,
        exact=tokenizer.exact,
        tokenizer_sha256=tokenizer.sha256,
        file_sizes={path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        versions={package: version(package) for package in ("megatron-core", "sentencepiece")},
    )
    manifest.save(folder)
    return manifest


def _files_of(data: DataConfig) -> tuple[Path, ...]:
    """All files that will be read."""
    files = source_files(data.source)
    return (*files, Path(data.tokenizer.path)) if isinstance(data.tokenizer, SentencePieceModel) else files


def _refuse_foreign(folder: Path) -> None:
    """A folder that holds something else than a corpus is not ours to replace."""
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        rule = "must be a prepared corpus, an empty folder or none"
        raise DataError(Mistake("data.folder", str(folder), rule, "set data.folder to another folder"))
