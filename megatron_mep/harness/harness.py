"""Tasks of lm-evaluation-harness, composed: a checkpoint is loaded at any tensor size and answers their requests."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megatron_mep.checkpoint.files import RUN_FILE, find
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.config.errors import Mistake
from megatron_mep.config.loader import load_tree
from megatron_mep.config.misspelt import did_you_mean, most_alike
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.facts import facts_of
from megatron_mep.harness.length import HarnessError, MaxLength
from megatron_mep.harness.share import share_of
from megatron_mep.loaded import loaded_whole, opening
from megatron_mep.model.in_force import in_force
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, shutdown
from megatron_mep.parallel.watchdog import Watchdog
from megatron_mep.run import RunConfig, overridden, run_of
from megatron_mep.training.precision import dtype_of
from megatron_mep.undivided import UNDIVIDED, corpus_for

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from megatron_mep.harness.language_model import Asked

WHY_UNDIVIDED = "requests have lengths of their own, and text is written token by token"
LISTED = "see lm-eval ls tasks, or give --include-path"
BOOTSTRAPS = 100_000
"""Samples that the harness draws for the error of what has no formula for it; its own default."""


@dataclass(frozen=True)
class Tasks:
    """What is asked, as the harness' own options of the same names say it."""

    names: tuple[str, ...]
    """Names or patterns of tasks, groups and tags, or files of tasks."""
    include_path: Path | None = None
    """A folder of the user's own tasks."""
    num_fewshot: int | None = None
    limit: float | None = None
    log_samples: bool = False


def harness(
    checkpoint: Path, tasks: Tasks, max_length: MaxLength, overrides: Iterable[str] = (), to: Path | None = None
) -> None:
    """Puts tasks to a checkpoint; the first rank prints the table, and writes the results into a folder.

    Collective: every process of the job calls it. Tensor ranks share the model, data ranks the requests.
    """
    if find_spec("lm_eval") is None:
        raise HarnessError(Mistake("mep harness", None, "needs lm_eval", "pip install 'megatron-mep[harness]'"))
    folder = find(checkpoint)
    run = overridden(run_of(load_tree(folder / RUN_FILE)), [*UNDIVIDED, *overrides])
    environment = Environment.discover(os.environ)
    corpus = corpus_for(run, folder, environment.world_size, WHY_UNDIVIDED)
    manager, names = _found(tasks)
    job, of_run = run.job, folder.parent.parent
    groups = initialize(environment, run.parallel, run.seed, job.collective_timeout_s, job.startup_s)
    try:
        with Watchdog.of_job(groups.rank, groups.world_size, job, of_run) as watchdog:
            results = to or of_run / "harness"
            told_by_rank_0(lambda: _make(results))
            asked = _asked(run, corpus, folder, groups, watchdog.tick)
            _evaluate(asked, max_length, tasks, names, manager, results, groups)
    finally:
        shutdown()


def _found(tasks: Tasks) -> tuple["TaskManager", list[str]]:
    """What knows the tasks, and the names of those that are asked for."""
    from lm_eval.tasks import TaskManager

    own = tasks.include_path
    if own is not None:
        if not own.is_dir():
            raise HarnessError(Mistake("--include-path", str(own), "must be a folder of tasks", "check the path"))
        # the harness' own tasks are some 15,000, which take their time
        few = TaskManager(include_path=str(own), include_defaults=False)
        if set(tasks.names) <= set(few.all_subtasks):
            return few, list(tasks.names)
    manager = TaskManager(include_path=None if own is None else str(own))
    names: dict[str, None] = {}
    for name in tasks.names:
        matching = [name] if Path(name).is_file() else manager.match_tasks([name])
        if not matching:
            remedy = did_you_mean(name, manager.all_tasks) if most_alike(name, manager.all_tasks) else LISTED
            raise HarnessError(Mistake("--tasks", name, "is no task that lm-eval knows", remedy))
        names.update(dict.fromkeys(matching))
    return manager, list(names)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"must be a folder that can be written ({error.strerror})"
        raise HarnessError(Mistake("--to", str(folder), rule, "name another folder")) from None


def _asked(run: RunConfig, corpus: Manifest, folder: Path, groups: Groups, came_on: Callable[[], None]) -> "Asked":
    from megatron_mep.harness.language_model import Asked

    tokenizer = Tokenizer.load(Path(run.data.folder) / TOKENIZER)
    model = loaded_whole(run, tokenizer, folder, groups, dtype_of(run.training.precision))
    if groups.rank == 0:
        print(f"{folder}, trained at {run.training.seq_length}\n{in_force(model)}", flush=True)  # noqa: T201
    facts = facts_of(run, corpus, read_progress(folder), groups, model, "evaluation", str(folder))

    @torch.no_grad()
    def logits(tokens: Tensor) -> Tensor:
        # one pass over the whole text: some length tricks look at how much is read at once
        after: Tensor = model(tokens.to(groups.device), None, None, runtime_gather_output=True)
        came_on()
        return after[..., : tokenizer.vocab_size]

    return Asked(
        logits=logits,
        opened=opening(model, tokenizer.vocab_size, run.generation.prefill_chunk, came_on),
        tokenizer=tokenizer,
        batch_tokens=run.evaluation.batch_tokens,
        checkpoint=str(folder),
        facts=facts.model_dump(mode="json"),
    )


def _evaluate(
    asked: "Asked",
    max_length: MaxLength,
    tasks: Tasks,
    names: list[str],
    manager: "TaskManager",
    to: Path,
    groups: Groups,
) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    from megatron_mep.harness.language_model import MepLM

    tracker = EvaluationTracker(output_path=str(to))
    checkpoint = Path(asked.checkpoint)
    results = simple_evaluate(
        model=MepLM(asked, max_length, share_of(groups)),
        # names the results
        model_args={"model": f"{asked.facts['run']}/{checkpoint.name}", "checkpoint": asked.checkpoint},
        tasks=names,
        num_fewshot=tasks.num_fewshot,
        limit=tasks.limit,
        log_samples=tasks.log_samples,
        bootstrap_iters=BOOTSTRAPS if groups.rank == 0 else 0,
        evaluation_tracker=tracker,
        task_manager=manager,
    )
    if groups.rank == 0:
        _tell(results, tracker, to)


def _tell(results: dict[str, Any], tracker: Any, to: Path) -> None:
    """The table on standard output, and the harness' own files."""
    from lm_eval.utils import make_table

    samples = results.pop("samples", None)
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, of_task in (samples or {}).items():
        tracker.save_results_samples(task_name=task, samples=of_task)
    for part in ("results", "groups"):
        if results.get(part):
            print(make_table(results, part), flush=True)  # noqa: T201
    file = to / tracker.general_config_tracker.model_name_sanitized / f"results_{tracker.date_id}.json"
    if not file.is_file():
        # the harness itself goes on without it
        raise HarnessError(Mistake("--to", str(to), "cannot be written", "name another folder"))
    print(f"results in {file}", flush=True)  # noqa: T201
