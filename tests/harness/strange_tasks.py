"""Tasks that cannot be asked as they are, each for a reason of its own, and one whose questions are drawn."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

UNSAFE, UNSAFE_GROUP, UNSAFE_TAG = "strange_unsafe", "strange_unsafe_group", "strange_unsafe_tag"
DRAWN = "strange_drawn"
NUM_SHOTS = 2
"""Questions of those that are otherwise as they must be."""

CODE = """
import os
import random

import datasets


def _of(words):
    return {"test": datasets.Dataset.from_list([{"text": "the", "word": word} for word in words])}


def sized(tokenizer=None, **_):
    assert tokenizer, "No tokenizer or pretrained provided."
    return _of(["fox"])


def drawn(lengths=(2,), by_process=False, **_):
    last = os.getpid() if by_process else random.randrange(10**6)
    return _of(["fox " * length + str(last) for length in lengths])
"""


def write_strange_tasks(folder: Path) -> Path:
    """The folder `folder / "strange"` of their files."""
    tasks = folder / "strange"
    tasks.mkdir()
    (tasks / "code.py").write_text(CODE, encoding="utf-8")
    questions = folder / "strange.jsonl"
    questions.write_text(f"{json.dumps({'text': 'the', 'word': 'fox'})}\n" * NUM_SHOTS, encoding="utf-8")
    here = {"dataset_kwargs": {"data_files": {"test": str(questions)}, "cache_dir": str(folder / "of_strange")}}
    made = {"dataset_path": "", "custom_dataset": "!function code.drawn", "output_type": "loglikelihood"}
    for name, differing in {
        UNSAFE: {"unsafe_code": True, "tag": UNSAFE_TAG, "custom_dataset": "!function code.absent"},
        UNSAFE_GROUP: {"group": UNSAFE_GROUP, "task": [UNSAFE]},
        "strange_text": {**here, "doc_to_text": "{{text | unknown}}"},
        "strange_module": {"custom_dataset": "!function no_such_module.absent"},
        "strange_function": {"custom_dataset": "!function code.absent"},
        "strange_kind": {**here, "output_type": "riddle"},
        "strange_file": {"dataset_kwargs": {"data_files": {"test": str(folder / "absent.jsonl")}}},
        "strange_data": {"dataset_path": "no-such-owner/no-such-data"},
        "strange_sized": {"custom_dataset": "!function code.sized"},
        "strange_picture": {**here, "doc_to_image": "text"},
        "strange_shots": {**here, "fewshot_split": "test"},
        DRAWN: made,
    }.items():
        (tasks / f"{name}.yaml").write_text(_file(name, differing), encoding="utf-8")
    (tasks / "strange_yaml.yaml").write_text("task: [strange_yaml", encoding="utf-8")
    return tasks


def _file(name: str, differing: dict[str, Any]) -> str:
    task = {"task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": "{{text}}",
            "doc_to_target": "{{word}}", "output_type": "generate_until", **differing}  # fmt: skip
    if "group" in differing:
        task = differing
    # a name after `!function` is no text
    return re.sub("'(!function .*)'", r"\1", yaml.safe_dump(task))
