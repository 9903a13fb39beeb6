"""Whether tasks that are loaded can be put to a model, and be asked as the user wants."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megatron_mep.config.errors import Mistake
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.harness.greedy import until_of
from megatron_mep.harness.length import HarnessError
from megatron_mep.harness.tasks import Tasks


def mistakes_in(loaded: dict[str, Any], wanted: Tasks) -> Iterator[Mistake]:
    """Why they cannot; `loaded` has the harness' tasks by their names."""
    for name, task in loaded.items():
        if getattr(task, "UNSAFE_CODE", False) and not wanted.confirm_run_unsafe_code:
            yield runs_code(name)
        if getattr(task, "MULTIMODAL", False):
            yield Mistake("--tasks", name, "asks about more than text", "leave it out")
        if task.get_config("output_type") == "generate_until":
            yield from _not_greedy(name, task, wanted)
        yield from _lacking_shots(name, task, wanted)
    yield from _strange_samples(loaded, wanted)


def runs_code(name: str) -> Mistake:
    """That a task needs the user's word."""
    rule = "runs code that the model writes, on this machine and with your rights"
    return Mistake("--tasks", name, rule, "give --confirm-run-unsafe-code where that does no harm, or leave it out")


def _not_greedy(name: str, task: Any, wanted: Tasks) -> Iterator[Mistake]:
    try:
        until_of({**(task.get_config("generation_kwargs") or {}), **wanted.gen_kwargs})
    except HarnessError as error:
        yield from (replace(mistake, value=name) for mistake in error.mistakes)


def _lacking_shots(name: str, task: Any, wanted: Tasks) -> Iterator[Mistake]:
    num_shots, sampler = wanted.num_fewshot, getattr(task, "sampler", None)
    # where a task says that it has none, the harness leaves it so
    if not num_shots or sampler is None or task.get_config("num_fewshot") == 0:
        return
    # a question is not an example of itself
    num_left = len(sampler.fewshot_docs()) - (task.fewshot_cfg.split == task.config.test_split)
    if num_shots > num_left:
        yield Mistake("--num-fewshot", num_shots, f"is more than the {num_left} examples of {name}", "ask for fewer")


def _strange_samples(loaded: dict[str, Any], wanted: Tasks) -> Iterator[Mistake]:
    for name, numbers in (wanted.samples or {}).items():
        if name not in loaded:
            yield Mistake("--samples", name, "is none of the tasks that are asked", did_you_mean(name, [*loaded]))
        elif numbers[-1] >= len(loaded[name].eval_docs):
            rule = f"must be below {len(loaded[name].eval_docs)}, the questions of {name}"
            yield Mistake("--samples", numbers[-1], rule, "name questions that it has")
