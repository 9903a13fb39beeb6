"""A program that asks exported folders as their user would.

`python ask_all.py TASKS MAX_LENGTH TO TASK,TASK FOLDER...`
What each answers is written to the file TO, by folder and task.
"""

import json
import sys

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

tasks, max_length, to, names, *folders = sys.argv[1:]
manager = TaskManager(include_path=tasks, include_defaults=False)
answers = {}
for folder in folders:
    results = simple_evaluate(
        model="hf",
        model_args=f"pretrained={folder},trust_remote_code=True,max_length={max_length}",
        tasks=names.split(","),
        device="cpu",
        batch_size=4,
        bootstrap_iters=0,
        task_manager=manager,
    )
    answers[folder] = {
        task: [sample["filtered_resps"] for sample in sorted(of_task, key=lambda one: one["doc_id"])]
        for task, of_task in results["samples"].items()
    }
with open(to, "w", encoding="utf-8") as file:
    json.dump(answers, file)
