"""launch/quickstart.sh in miniature: through the deepspeed launcher, on two ranks, from text to the page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_mep.evaluation.rows import read_rows

ROOT = Path(__file__).parents[2]
SMALL = (
    "model.num_layers=1",
    "model.hidden_size=32",
    "data.source.max_bytes=200000",
    "data.tokenizer.vocab_size=400",
    "training.seq_length=32",
    "training.steps=2",
    "training.micro_batch_size=2",
    "training.global_batch_size=2",
    "training.schedule.warmup_steps=0",
    "validation.interval=0",
    "evaluation.lengths=[32,128]",
    "evaluation.tokens=512",
    "evaluation.spans=2",
    "evaluation.last_k=16",
)


@pytest.mark.slow
def test_it_runs_from_text_to_the_page(tmp_path):
    stamped = Path(sys.prefix) / "installed-test"
    if not stamped.exists():
        pytest.skip("the environment was not made by launch/setup.sh: the script would install into it")
    environment = {**os.environ, "VENV": sys.prefix, "RUNS": str(tmp_path / "runs"), "ENCODINGS": "mep"}
    done = subprocess.run(
        ["bash", "launch/quickstart.sh", *SMALL], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "perplexity at length" in done.stdout
    assert (tmp_path / "runs" / "report" / "index.html").is_file()
    rows = read_rows(tmp_path / "runs" / "mep" / "evaluation" / "quickstart.jsonl")
    assert {(row.length, row.tensor_parallel) for row in rows} == {(32, 2), (128, 2)}
