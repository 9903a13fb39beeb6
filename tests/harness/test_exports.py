"""Exports of every encoding, asked by lm-evaluation-harness, score as the models that they were made of."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.export.files import write_model
from megatron_mep.harness.length import MaxLength
from tests.data.toy import corpus
from tests.export.cases import Model, published
from tests.export.models import TRAIN_LENGTH, built
from tests.harness.local_tasks import CHOICE, NUM_QUESTIONS, ROLLING, write_tasks
from tests.support.distributed import joined
from tests.support.distributed import run as run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("lm_eval", "transformers", "accelerate")),
        reason="needs pip install 'megatron-mep[export,harness]'",
    ),
]
SCORED = (CHOICE, ROLLING)
MAX_LENGTH = 4 * TRAIN_LENGTH
EXPORTED = 1e-4
"""What an export may change of a log-likelihood, relative."""


def test_every_encoding_is_asked_as_itself_and_as_its_export(tmp_path: Path) -> None:
    text, _ = corpus(tmp_path)
    tasks, models = write_tasks(tmp_path), list(published())
    run_ranks(_write_and_ask, 1, models, text / TOKENIZER, tasks, tmp_path)
    found = _asked_as_exports([tmp_path / model.name for model in models], tasks, tmp_path)
    assert len(models) >= 40
    for model in models:
        expected = json.loads((tmp_path / f"{model.name}.json").read_text())
        for task in SCORED:
            answers = _numbers(found[str(tmp_path / model.name)][task])
            assert len(answers) >= NUM_QUESTIONS
            assert answers == pytest.approx(_numbers(expected[task]), rel=EXPORTED), (model.name, task)


def _asked_as_exports(folders: list[Path], tasks: Path, place: Path) -> dict[str, Any]:
    to = place / "found.json"
    program = [sys.executable, "-P", str(Path(__file__).parent / "ask_all.py")]
    command = [*program, str(tasks), str(MAX_LENGTH), str(to), ",".join(SCORED), *map(str, folders)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_MODULES_CACHE": str(place)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(to.read_text())
    return found


def _write_and_ask(models: list[Model], tokenizer_file: Path, tasks: Path, folder: Path) -> None:
    joined()
    tokenizer = Tokenizer.load(tokenizer_file)
    for case in models:
        model, trained = built(case, tokenizer.vocab_size)
        to = folder / case.name
        to.mkdir()
        write_model(to, model, trained, case.tricks, TRAIN_LENGTH, tokenizer)
        (folder / f"{case.name}.json").write_text(json.dumps(_answers(model, tokenizer, tasks)))


def _answers(model: torch.nn.Module, tokenizer: Tokenizer, tasks: Path) -> dict[str, Any]:
    # imported in the rank alone
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from megatron_mep.harness.language_model import Asked, MepLM

    @torch.no_grad()
    def logits(tokens: Tensor) -> Tensor:
        return model(tokens, None, None, runtime_gather_output=True)[..., : tokenizer.vocab_size]

    def opened(batch_size: int, max_length: int) -> Any:
        raise AssertionError(f"no text is written: {batch_size} x {max_length}")

    asked = Asked(logits, opened, 256, "none", {})
    results = simple_evaluate(
        model=MepLM(lambda: asked, tokenizer, MaxLength(MAX_LENGTH, truncate=False)),
        tasks=list(SCORED),
        bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )
    return {
        task: [sample["filtered_resps"] for sample in sorted(of_task, key=lambda one: one["doc_id"])]
        for task, of_task in results["samples"].items()
    }


def _numbers(answers: list[Any]) -> list[float]:
    """The log-likelihoods of answers: a choice has one with whether it is the greedy one, a text has one alone."""
    return [float(part[0] if isinstance(part, list | tuple) else part) for answer in answers for part in answer]
