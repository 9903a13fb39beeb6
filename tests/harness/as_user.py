"""A program that asks an exported folder as its user would: `python as_user.py FOLDER TASKS MAX_LENGTH TO TASK...`.

It is `lm_eval --model hf` with the same options, without the time that finding the harness' own tasks takes.
"""

import sys

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

folder, tasks, max_length, to, *names = sys.argv[1:]
tracker = EvaluationTracker(output_path=to)
results = simple_evaluate(
    model="hf",
    model_args=f"pretrained={folder},trust_remote_code=True,max_length={max_length}",
    tasks=names,
    device="cpu",
    batch_size=4,
    bootstrap_iters=0,
    evaluation_tracker=tracker,
    task_manager=TaskManager(include_path=tasks, include_defaults=False),
)
samples = results.pop("samples")
tracker.save_results_aggregated(results=results, samples=samples)
for task, of_task in samples.items():
    tracker.save_results_samples(task_name=task, samples=of_task)
