"""Tasks of one's own in miniature, one for each kind of request, on questions of the words of a toy corpus."""

import json
import random
from pathlib import Path

import yaml

from tests.data.toy import WORDS

CHOICE, ROLLING, WRITTEN = "toy_choice", "toy_rolling", "toy_written"
TASKS = (CHOICE, ROLLING, WRITTEN)
UNTIL = "ps"
MAX_GEN_TOKS = 12
NUM_QUESTIONS = 7
"""Which two ranks cannot share evenly."""


def write_tasks(folder: Path) -> Path:
    """The folder `folder / "tasks"` of the tasks' files, and their questions beside them."""
    tasks = folder / "tasks"
    tasks.mkdir()
    draw = random.Random(3)
    questions = folder / "questions.jsonl"
    lines = [_question(number, draw) for number in range(NUM_QUESTIONS)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(questions)}, "cache_dir": str(folder / "datasets")},
        "test_split": "test",
        "metadata": {"version": 1.0},
    }
    kinds = {
        CHOICE: {"output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_choice": "choices",
                 "doc_to_target": "label", "metric_list": [{"metric": "acc"}]},
        ROLLING: {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{long}}",
                  "metric_list": [{"metric": "bits_per_byte"}]},
        WRITTEN: {"output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": "{{word}}",
                  "generation_kwargs": {"until": [UNTIL, "\n"], "max_gen_toks": MAX_GEN_TOKS, "do_sample": False},
                  "metric_list": [{"metric": "exact_match"}]},
    }  # fmt: skip
    for name, kind in kinds.items():
        (tasks / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **common, **kind}), encoding="utf-8")
    return tasks


def _question(number: int, draw: random.Random) -> dict[str, object]:
    """Choices of one token and of several; the context of some ends in a space."""
    choices = [draw.choice(WORDS), " ".join(draw.choices(WORDS, k=3)), "é" * (number + 1)]
    return {
        "text": f"{number} " + " ".join(draw.choices(WORDS, k=2 + number)) + " " * (number % 2),
        "choices": choices,
        "label": number % len(choices),
        "word": choices[0],
        "long": " ".join(draw.choices(WORDS, k=3 + 12 * number)),
    }
