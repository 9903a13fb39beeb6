"""A study of two encodings and two seeds over a run in miniature, and what its arms would leave."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from megatron_mep.evaluation.plan import plans
from megatron_mep.evaluation.rows import ModelFacts, ResultRow, append_rows, perplexity_of
from megatron_mep.fingerprints import Fingerprints, write_fingerprints
from megatron_mep.studies.arms import Arm, Study, load_study
from megatron_mep.training.attempts import Finished
from tests.data.toy import settings
from tests.evaluation.test_rows import FACTS
from tests.support.runs import run_tree

NUM_DOCUMENTS = 8
SCORED = 512


def study_of(folder: Path, *overrides: str, text: Path | None = None, **changes: Any) -> Study:
    """A study whose files and results are below a folder; its corpus is where `text` says, else there, too."""
    base = run_tree(
        model={"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2},
        data=settings(text or folder).model_dump(mode="json"),
        training={"seq_length": 16, "steps": 4, "global_batch_size": 4},
        checkpoint={"interval": 2},
        validation={"interval": 0},
        evaluation={"lengths": [16, 32], "tokens": SCORED, "protocols": ["blocks"], "batch_tokens": 128},
    )
    (folder / "base.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    tree = {
        "study": "toy",
        "base": "base.yaml",
        "runs": str(folder / "runs"),
        "encodings": {"alibi": {"name": "alibi"}, "mep": {"name": "mep"}},
        "seeds": [1, 2],
        **changes,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return load_study(folder / "study.yaml", overrides)


def leave_trained(arm: Arm, weights: str = "w" * 64, data_order: str = "d" * 64) -> None:
    """What an arm leaves that was trained; by default it began as all others of its seed."""
    arm.run.folder.mkdir(parents=True, exist_ok=True)
    (arm.run.folder / "run.yaml").write_text(arm.run.yaml(), encoding="utf-8")
    write_fingerprints(arm.run.folder, f"{weights} {arm.run.seed}", f"{data_order} {arm.run.seed}")
    assert Fingerprints.read(arm.run.folder) is not None
    Finished.now(arm.run.training.steps, 1.0).write(arm.run.folder)


def leave_rows(arm: Arm, nll: float = 2.0, scored_hash: str = "s" * 64, spread: float = 0.0) -> list[ResultRow]:
    """Rows of every way in which an arm is to be measured; its documents err by up to `spread` around a mean loss."""
    tokens = np.full(NUM_DOCUMENTS, SCORED // NUM_DOCUMENTS)
    errors = spread * np.linspace(-1, 1, NUM_DOCUMENTS)
    documents = (nll + errors - errors.mean()) * tokens
    mean = float(documents.sum() / SCORED)
    facts = ModelFacts(**{**FACTS.model_dump(), "run": arm.name, "seed": arm.run.seed, "step": arm.run.training.steps})
    rows = [
        ResultRow(
            **facts.model_dump(),
            created=datetime.now(UTC),
            protocol=plan.protocol,
            length=plan.length,
            context=plan.context,
            window=plan.window,
            stride=plan.stride,
            last_k=plan.last_k,
            scored_tokens=SCORED,
            scored_hash=scored_hash,
            scored_bytes=None,
            nll=mean,
            perplexity=perplexity_of(mean),
            bits_per_byte=None,
            non_finite=0,
            document_tokens=tuple(tokens.tolist()),
            document_nll=tuple(documents.tolist()),
            seconds=1.0,
            tokens_per_s=1.0,
        )
        for plan in plans(arm.run.evaluation.resolved(arm.train_length), 10_000)
    ]
    append_rows(arm.rows_file, rows)
    return rows
