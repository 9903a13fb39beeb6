"""An export, composed: a checkpoint becomes a folder that transformers loads, with a proof that it computes alike."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from megatron_mep.acting import trained_model
from megatron_mep.checkpoint.files import RUN_FILE, find
from megatron_mep.checkpoint.progress import Progress, read_progress
from megatron_mep.checkpoint.resume import check_tokenizer
from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.config.loader import load_tree
from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.export.card import card_of, rows_of
from megatron_mep.export.certificate import ExportError, certify
from megatron_mep.export.files import write_model
from megatron_mep.export.reference import model_cases, tokenizer_cases
from megatron_mep.loaded import loaded_whole
from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import initialize, shutdown
from megatron_mep.run import RunConfig, overridden, run_of

NEEDED = ("transformers", "safetensors", "tokenizers", "huggingface_hub")


def export(checkpoint: Path, to: Path, overrides: Iterable[str] = ()) -> Path:
    """Writes the model of a checkpoint, with the length tricks of its run file and the overrides, as a new folder.

    The model is put together on one process, in fp32. Nothing is at `to` unless it was proved to compute alike.
    """
    environment = Environment.discover(os.environ)
    mistakes = list(_against(to, environment.world_size))
    if mistakes:
        raise ExportError(mistakes)
    folder = find(checkpoint)
    # the model is whole on one process, and its attention exact
    sizes = ("tensor", "context", "pipeline", "virtual_pipeline")
    here = ["parallel.sequence=false", *(f"parallel.{size}=1" for size in sizes)]
    exact = ["model.attention_backend=auto", "model.attention_epsilon=0"]
    run = overridden(run_of(load_tree(folder / RUN_FILE)), [*here, *exact, *overrides])
    tokenizer = _tokenizer_of(run)
    reached = read_progress(folder)
    check_tokenizer(reached, tokenizer.sha256, folder)
    groups = initialize(environment, run.parallel, run.seed)
    try:
        model = loaded_whole(run, tokenizer, folder, groups, torch.float32)
        _published(to, run, model, tokenizer, folder, reached)
    finally:
        shutdown()
    return to


def _published(
    to: Path, run: RunConfig, model: EncodedGPT, tokenizer: Tokenizer, checkpoint: Path, reached: Progress
) -> None:
    """Writes the folder beside its place, proves it, and puts it in place."""
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        inside = partial / to.name
        inside.mkdir()
        _write(inside, run, model, tokenizer, checkpoint, reached)
        inside.replace(to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    folder: Path, run: RunConfig, model: EncodedGPT, tokenizer: Tokenizer, checkpoint: Path, reached: Progress
) -> None:
    """All files, the certificate last."""
    from megatron_mep.export.tokenizer import end_of

    train_length = run.training.seq_length
    trained = trained_model(run, tokenizer)
    config, num_parameters = write_model(folder, model, trained, run.extrapolation, train_length, tokenizer)
    facts = {
        "config": config,
        "step": reached.step,
        "version": version("megatron-mep"),
        "num_parameters": num_parameters,
        "eos": end_of(tokenizer),
    }
    (folder / "README.md").write_text(card_of(run, facts, rows_of(run, checkpoint)), encoding="utf-8")
    made_of = {
        "run": run.name,
        "step": reached.step,
        "tokenizer_sha256": tokenizer.sha256,
        "megatron_mep": version("megatron-mep"),
    }
    cases = list(model_cases(model, tokenizer.vocab_size, train_length))
    certify(folder, cases, tokenizer_cases(tokenizer), made_of)


def _against(to: Path, world_size: int) -> Iterator[Mistake]:
    """What stands against any export here."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        yield Mistake("mep export", None, f"needs {', '.join(missing)}", "pip install 'megatron-mep[export]'")
    if world_size > 1:
        yield Mistake("mep export", None, f"puts the model together on one process, not {world_size}",
                      "call it without a launcher: a checkpoint of any layout is read")  # fmt: skip
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        yield Mistake("--to", str(to), "must not be there yet, or be an empty folder", "name another folder")


def _tokenizer_of(run: RunConfig) -> Tokenizer:
    file = Path(run.data.folder) / TOKENIZER
    if not file.is_file():
        rule = f"must hold {TOKENIZER}, the tokenizer that the model was trained with"
        raise DataError(Mistake("data.folder", run.data.folder, rule, "give data.folder=... where that file lies"))
    return Tokenizer.load(file)
