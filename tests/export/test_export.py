"""`mep export`: a checkpoint becomes a folder that transformers loads, proved to compute alike."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core import dist_checkpointing
from torch import distributed

from megatron_mep import cli
from megatron_mep.acting import trained_model
from megatron_mep.checkpoint.files import READ_FIRST, find
from megatron_mep.checkpoint.load import load_weights
from megatron_mep.checkpoint.manifest import seal
from megatron_mep.checkpoint.state import template_of, weights
from megatron_mep.checkpoint.writer import write_in_this_process
from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.export import export as exporting
from megatron_mep.export import verify
from megatron_mep.export.certificate import TOLERANCE
from megatron_mep.export.files import write_model
from megatron_mep.export.reference import model_cases, tokenizer_cases
from megatron_mep.model.gpt import build_model
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import describe_rank, evaluate_on, job, train_on
from tests.export.cases import MODELS, Model, of_each_kind
from tests.export.models import TRAIN_LENGTH, built
from tests.support.distributed import joined
from tests.support.distributed import run as run_ranks

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs pip install 'megatron-mep[export]'")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("export")
    corpus(folder)
    run = job(folder, **{"model.encoding.kernels": "[{kernel: log}, {kernel: gaussian}]"})
    train_on(1, run)
    evaluate_on(1, run.folder, run.folder / "evaluation" / f"{find(run.folder).name}.jsonl")
    return run


@pytest.fixture(scope="module")
def exported(trained: RunConfig) -> Path:
    to = trained.folder.parent / "exported"
    assert called(trained.folder.parent, "export", trained.folder, "--to", to) == [0]
    return to


def called(folder: Path, *arguments: object, world_size: int = 1, broken: bool = False) -> list[int]:
    """The exit codes of `mep` on ranks of this machine; what is `broken` exports other weights than there are."""
    run_ranks(_call, world_size, folder, [str(argument) for argument in arguments], broken)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


def _call(folder: Path, arguments: list[str], broken: bool) -> None:
    describe_rank()
    if broken:
        build = exporting.write_model

        def other(to: Path, model: torch.nn.Module, *rest: Any) -> Any:
            written = build(to, model, *rest)
            with torch.no_grad():
                next(model.parameters()).mul_(1.5)
            return written

        exporting.write_model = other
    rank = distributed.get_rank()
    (folder / f"{rank}.json").write_text(f"{cli.main(arguments)}")


def program(name: str, *arguments: object, hub: Path) -> None:
    """Runs a program that knows nothing of this project: one beside this file, or elsewhere."""
    file = str(Path(__file__).parent / name)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(hub)}
    command = [sys.executable, "-P", file, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_folder_is_written_with_its_proof(trained: RunConfig, exported: Path) -> None:
    certificate = json.loads((exported / "certificate.json").read_text())
    differences = certificate["largest_difference_of_a_logit"]
    assert len(differences) == 5
    assert max(differences.values()) < TOLERANCE
    files = {file.name for file in exported.iterdir()}
    assert certificate["sha256"].keys() == files - {"certificate.json"}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} < files
    assert [path.name for path in exported.parent.glob(".exported*")] == []
    card = (exported / "README.md").read_text()
    assert "| blocks | 64 | full |" in card
    assert f"Trained with {trained.training.seq_length} tokens" in card


@pytest.mark.slow
def test_the_size_of_the_writer_leaves_no_trace(trained: RunConfig, exported: Path, tmp_path: Path) -> None:
    source = find(trained.folder)
    four = tmp_path / "checkpoints" / source.name
    run_ranks(_written_by_four, 4, trained, source, four)
    to = tmp_path / "exported"
    assert called(tmp_path, "export", four, "--to", to) == [0]
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (to / name).read_bytes() == (exported / name).read_bytes(), name


def _written_by_four(run: RunConfig, source: Path, to: Path) -> None:
    joined(tensor=4)
    tokenizer = Tokenizer.load(Path(run.data.folder) / TOKENIZER)
    layout = run.parallel.model_copy(update={"tensor": 4})
    model = build_model(trained_model(run, tokenizer), layout, tokenizer.vocab_size, seed=7)
    load_weights(source, model)
    to.mkdir(parents=True, exist_ok=True)
    write_in_this_process()
    dist_checkpointing.save(weights(template_of(model), lambda parameter: parameter.detach()), str(to))
    if distributed.get_rank() == 0:
        for name in READ_FIRST[:2]:
            shutil.copy(source / name, to / name)
        seal(to, {})


@pytest.mark.slow
def test_it_is_used_as_any_other_model(exported: Path, tmp_path: Path) -> None:
    program("as_user.py", exported, tmp_path / "r.json", hub=tmp_path / "hub")
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["together"] == found["apart"] == found["uncached"]
    assert found["beams"] == found["beams_uncached"]
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-6)
    assert found["padding_behind"] < TOLERANCE
    assert all(found["refusals"])
    kept = {name for name, kind in found["types"].items() if kind == "torch.float32"}
    assert kept == {name for name in found["types"] if "encoding_weights" in name} != set()
    assert found["of_bf16"] < 0.1
    assert found["fresh_is_finite"]
    assert found["without_gradient"] == [name for name in found["types"] if name.endswith("slope_1")]
    assert found["saved_again"]


@pytest.mark.slow
def test_nothing_is_written_where_logits_differ(
    trained: RunConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert called(tmp_path, "export", trained.folder, "--to", tmp_path / "to" / "model", broken=True) == [2]
    assert "computes other logits than its checkpoint" in capfd.readouterr().err
    assert list((tmp_path / "to").iterdir()) == []


def test_what_cannot_be_is_refused_at_once(
    trained: RunConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert called(tmp_path, "export", trained.folder, "--to", tmp_path / "full", world_size=2) == [2, 2]
    told = capfd.readouterr().err
    assert "on one process, not 2" in told
    assert "must not be there yet" in told


def test_an_encoding_of_each_kind_loads_by_transformers_alone(trained: RunConfig, tmp_path: Path) -> None:
    loads(list(of_each_kind()), trained, tmp_path)


@pytest.mark.slow
def test_every_encoding_loads_by_transformers_alone(trained: RunConfig, tmp_path: Path) -> None:
    loads(list(MODELS), trained, tmp_path)


def loads(models: list[Model], trained: RunConfig, folder: Path) -> None:
    """Writes the models, and has a program that knows transformers alone compare what they compute."""
    run_ranks(_write_all, 1, models, Path(trained.data.folder) / TOKENIZER, folder)
    script = folder / "all.py"
    folders = [str(folder / model.name) for model in models]
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(verify.__file__).parent)!r})\nfrom verify import main\n"
        f"for folder in {folders!r}:\n    main(folder, folder + '.pt', folder + '.json')\n"
    )
    program(str(script), hub=folder / "hub")
    for model in models:
        found = json.loads((folder / f"{model.name}.json").read_text())
        assert max(found["differences"].values()) < TOLERANCE, (model.name, found)
        assert not found["other_texts"], model.name
        assert not found["imported"], model.name


def _write_all(models: list[Model], tokenizer_file: Path, folder: Path) -> None:
    joined()
    tokenizer = Tokenizer.load(tokenizer_file)
    texts = tokenizer_cases(tokenizer)
    for case in models:
        model, trained = built(case, tokenizer.vocab_size)
        to = folder / case.name
        to.mkdir()
        write_model(to, model, trained, case.tricks, TRAIN_LENGTH, tokenizer)
        cases = list(model_cases(model, tokenizer.vocab_size, TRAIN_LENGTH))
        torch.save({"model": cases, "tokenizer": texts}, folder / f"{case.name}.pt")
