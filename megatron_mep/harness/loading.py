"""Tasks of lm-evaluation-harness, loaded with their data; what the user can put right of them is told, by all ranks."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets.exceptions import DatasetsError
from jinja2 import TemplateError
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from yaml import YAMLError

from megatron_mep.config.errors import Mistake
from megatron_mep.config.misspelt import did_you_mean, most_alike
from megatron_mep.harness.greedy import until_of
from megatron_mep.harness.length import HarnessError
from megatron_mep.harness.tasks import Tasks
from megatron_mep.harness.together import found_by_all

FILE = ".yaml"
"""How the name of a task's file ends."""
LISTED = "see lm-eval ls tasks, or give --include-path"
RAISED = (
    AssertionError,
    AttributeError,
    DatasetsError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TemplateError,
    TypeError,
    ValueError,
    YAMLError,
)
"""By a task that is not as it must be: its file, its own code, or its data."""


class Manager(TaskManager):
    """Knows tasks by their names, and loads those that can be asked; it is called alike on every rank."""

    def __init__(self, tasks: Tasks, came_on: Callable[[], None], include_defaults: bool = True) -> None:
        """`came_on` is called after each of the tasks."""
        own = None if tasks.include_path is None else str(tasks.include_path)
        super().__init__(include_path=own, include_defaults=include_defaults, metadata=tasks.metadata)
        self._tasks, self._came_on = tasks, came_on

    def load(self, task_list: list[str]) -> Any:
        """The tasks with their data, as the harness asks for them; collective over all ranks."""
        return found_by_all(lambda: self._checked(task_list))

    def unreadable(self) -> list[Mistake]:
        """The files of the user's own tasks that the harness passes over."""
        own = self._tasks.include_path
        files = [] if own is None else sorted(own.rglob(f"*{FILE}"))
        mistakes = []
        for file in files:
            try:
                load_yaml(file, resolve_func=False)
            except (OSError, ValueError, YAMLError) as error:
                mistakes.append(Mistake(str(file), None, f"is no task's file: {_text(error)}", "correct it"))
        return mistakes

    def _checked(self, names: list[str]) -> Any:
        unsafe = [name for name in names if self._is_unsafe(name)]
        if unsafe and not self._tasks.confirm_run_unsafe_code:
            # some of them run code as soon as they are loaded
            raise HarnessError(_runs_code(name) for name in unsafe)
        loaded = self._merged(names, self._loaded(names))
        mistakes = [mistake for task in loaded["tasks"].values() for mistake in self._mistakes(task)]
        mistakes += self._strange_samples(loaded["tasks"])
        if mistakes:
            raise HarnessError(mistakes)
        return loaded

    def _loaded(self, names: list[str]) -> list[Any]:
        items, mistakes = [], []
        for name in names:
            try:
                items += _outermost(super().load([name]))
            except RAISED as error:
                mistakes.append(self._not_loaded(name, error))
            self._came_on()
        if mistakes:
            raise HarnessError(mistakes)
        return items

    def _merged(self, names: list[str], items: list[Any]) -> Any:
        try:
            return super().load(items)
        except ValueError as error:
            raise HarnessError(Mistake("--tasks", ",".join(names), _text(error), "name it once")) from None

    def _is_unsafe(self, name: str) -> bool:
        """Whether a task, or one of a group or tag, says in its file that it runs code."""
        entry = self.task_index.get(name)
        if entry is None:
            return False
        cfg = entry.cfg or {}
        # a tag has no file, and names its tasks; a task's tags are those that it has
        below = _members(cfg) if cfg else entry.tags
        return bool(cfg.get("unsafe_code")) or any(map(self._is_unsafe, below))

    def _not_loaded(self, name: str, error: BaseException) -> Mistake:
        entry = self.task_index.get(name)
        file = name if entry is None else entry.yaml_path
        text = _text(error)
        rule = f"cannot be loaded: {text}"
        if "tokenizer" in text and "tokenizer" not in self._tasks.metadata:
            remedy = "give --metadata tokenizer=DIR, with DIR the folder that mep export writes of this checkpoint"
        elif isinstance(error, ImportError):
            remedy = "install what it needs"
        elif isinstance(error, ConnectionError | DatasetsError):
            remedy = f"load its data once with a network, or correct what {file} says of it"
        else:
            remedy = f"correct {file}, or what it is given by --metadata and the environment"
        return Mistake("--tasks", name, rule, remedy)

    def _mistakes(self, task: Any) -> Iterator[Mistake]:
        """Why a task that is loaded cannot be put to a model."""
        if getattr(task, "UNSAFE_CODE", False) and not self._tasks.confirm_run_unsafe_code:
            yield _runs_code(task.task_name)
        if getattr(task, "MULTIMODAL", False):
            yield Mistake("--tasks", task.task_name, "asks about more than text", "leave it out")
        if task.get_config("output_type") == "generate_until":
            yield from self._not_greedy(task)
        num_shots, sampler = self._tasks.num_fewshot, getattr(task, "sampler", None)
        # where a task says that it has none, the harness leaves it so
        if num_shots and sampler is not None and task.get_config("num_fewshot") != 0:
            one_is_asked = task.fewshot_cfg.split == task.config.test_split
            num_left = len(sampler.fewshot_docs()) - one_is_asked
            if num_shots > num_left:
                rule = f"is more than the {num_left} examples that {task.task_name} has"
                yield Mistake("--num-fewshot", num_shots, rule, "ask for fewer")

    def _not_greedy(self, task: Any) -> Iterator[Mistake]:
        try:
            until_of({**(task.get_config("generation_kwargs") or {}), **self._tasks.gen_kwargs})
        except HarnessError as error:
            yield from (replace(mistake, value=task.task_name) for mistake in error.mistakes)

    def _strange_samples(self, loaded: dict[str, Any]) -> Iterator[Mistake]:
        """What is wrong with the questions that the user names."""
        for name, numbers in (self._tasks.samples or {}).items():
            if name not in loaded:
                yield Mistake("--samples", name, "is none of the tasks that are asked", did_you_mean(name, [*loaded]))
            elif numbers[-1] >= len(loaded[name].eval_docs):
                rule = f"must be below {len(loaded[name].eval_docs)}, the questions of {name}"
                yield Mistake("--samples", numbers[-1], rule, "name questions that it has")


def found(tasks: Tasks, came_on: Callable[[], None]) -> tuple[Manager, list[str]]:
    """What loads the tasks, and the names of those that are asked for."""
    own = tasks.include_path
    if own is not None and not own.is_dir():
        raise HarnessError(Mistake("--include-path", str(own), "must be a folder of tasks", "check the path"))
    # the harness' own tasks are some 15,000, which take their time
    manager = Manager(tasks, came_on, include_defaults=False)
    if not all(_is_file(name) or name in manager.all_subtasks for name in tasks.names):
        manager = Manager(tasks, came_on)
    names: dict[str, None] = {}
    strange = []
    for name in tasks.names:
        matching = [name] if _is_file(name) else manager.match_tasks([name])
        names.update(dict.fromkeys(matching))
        if not matching:
            strange.append(_unknown(name, manager.all_tasks))
    if strange:
        raise HarnessError([*strange, *manager.unreadable()])
    return manager, list(names)


def _is_file(name: str) -> bool:
    return name.endswith(FILE) and Path(name).is_file()


def _unknown(name: str, known: list[str]) -> Mistake:
    if name.endswith(FILE):
        return Mistake("--tasks", name, "is no file", "check the path")
    remedy = did_you_mean(name, known) if most_alike(name, known) else LISTED
    return Mistake("--tasks", name, "is no task that lm-eval knows", remedy)


def _runs_code(name: str) -> Mistake:
    rule = "runs code that the model writes, on this machine and with your rights"
    return Mistake("--tasks", name, rule, "give --confirm-run-unsafe-code where that does no harm, or leave it out")


def _outermost(loaded: Any) -> list[Any]:
    """What one name stands for: a group, or tasks."""
    inside = {child for children in loaded["group_map"].values() for child in children}
    groups = [group for name, group in loaded["groups"].items() if name not in inside]
    return groups or list(loaded["tasks"].values())


def _members(cfg: dict[str, Any]) -> Iterator[str]:
    """The names that a group's file lists."""
    members = cfg["task"] if isinstance(cfg.get("task"), list) else []
    for member in members:
        name = member if isinstance(member, str) else member.get("group") or member.get("task")
        if isinstance(name, str):
            yield name


def _text(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
