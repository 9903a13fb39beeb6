"""Tasks, put to a model by lm-evaluation-harness, and its results, written and printed by the first rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import make_table

from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.config.errors import Mistake
from megatron_mep.harness.language_model import MepLM
from megatron_mep.harness.length import HarnessError
from megatron_mep.harness.loading import found
from megatron_mep.harness.tasks import Tasks
from megatron_mep.harness.together import found_by_all

BOOTSTRAPS = 100_000
"""Samples that the harness draws for the error of what has no formula for it; its own default."""


def put(tasks: Tasks, model: MepLM, name: str, checkpoint: Path, to: Path, came_on: Callable[[], None]) -> None:
    """Puts the tasks to a model; its name names the files of the results.

    Collective; `came_on` is called after each task that is loaded.
    """
    manager, names = found_by_all(lambda: found(tasks, came_on))
    tracker, is_first, seeds = EvaluationTracker(output_path=str(to)), dist.get_rank() == 0, tasks.seeds
    results = simple_evaluate(
        model=model,
        model_args={"model": name, "checkpoint": str(checkpoint)},
        tasks=names,
        num_fewshot=tasks.num_fewshot,
        limit=tasks.limit,
        samples=tasks.samples,
        log_samples=tasks.log_samples,
        predict_only=tasks.predict_only,
        system_instruction=tasks.system_instruction,
        gen_kwargs=tasks.gen_kwargs or None,
        fewshot_as_multiturn=False,
        random_seed=seeds.python,
        numpy_random_seed=seeds.numpy,
        torch_random_seed=seeds.torch,
        fewshot_random_seed=seeds.fewshot,
        # those that are not confirmed have been refused
        confirm_run_unsafe_code=tasks.confirm_run_unsafe_code,
        bootstrap_iters=BOOTSTRAPS if is_first else 0,
        evaluation_tracker=tracker,
        task_manager=manager,
    )
    file = told_by_rank_0(lambda: _written(results, tracker, to))
    if is_first:
        for part in ("results", "groups"):
            if results.get(part):
                print(make_table(results, part), flush=True)  # noqa: T201
        print(f"results in {file}", flush=True)  # noqa: T201


def _written(results: dict[str, Any], tracker: Any, to: Path) -> Path:
    """The harness' own files; that of the results."""
    samples = results.pop("samples", None)
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, of_task in (samples or {}).items():
        tracker.save_results_samples(task_name=task, samples=of_task)
    file = to / tracker.general_config_tracker.model_name_sanitized / f"results_{tracker.date_id}.json"
    if not file.is_file():
        # the harness itself goes on without it
        raise HarnessError(Mistake("--to", str(to), "cannot be written", "name another folder"))
    return file
