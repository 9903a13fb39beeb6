"""Tasks of lm-evaluation-harness, loaded with their data; what the user can put right of them is told, by all ranks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lm_eval
from datasets.exceptions import DatasetsError
from jinja2 import TemplateError
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from yaml import YAMLError

from megatron_mep.config.errors import Mistake
from megatron_mep.config.misspelt import did_you_mean, most_alike
from megatron_mep.harness.fit import mistakes_in, runs_code
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
UNREADABLE = (OSError, ValueError, YAMLError)
"""What a file raises that is none of a task."""


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
            except UNREADABLE as error:
                mistakes.append(Mistake(str(file), None, f"is no task's file: {_text(error)}", "correct it"))
        return mistakes

    def _checked(self, names: list[str]) -> Any:
        unsafe = [name for name in names if self._is_unsafe(name)]
        if unsafe and not self._tasks.confirm_run_unsafe_code:
            # some of them run code as soon as they are loaded
            raise HarnessError(runs_code(name) for name in unsafe)
        loaded = self._merged(names, self._loaded(names))
        mistakes = list(mistakes_in(loaded["tasks"], self._tasks))
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
        stated = self._stated(name)
        return bool(stated.get("unsafe_code")) or any(map(self._is_unsafe, _members(stated)))

    def _stated(self, name: str) -> dict[str, Any]:
        """What a file says, none of its code being run; the tasks of a tag, as a group's file would list them."""
        entry = self.task_index.get(name)
        if entry is not None:
            return entry.cfg or {"task": sorted(entry.tags)}
        try:
            return load_yaml(name, resolve_func=False) if _is_file(name) else {}
        except UNREADABLE:
            # told when it is loaded
            return {}

    def _not_loaded(self, name: str, error: BaseException) -> Mistake:
        entry = self.task_index.get(name)
        file = Path(name if entry is None or entry.yaml_path is None else entry.yaml_path).resolve()
        is_own = not file.is_relative_to(Path(lm_eval.__file__).parent)
        text = _text(error)
        if "tokenizer" in text and "tokenizer" not in self._tasks.metadata:
            remedy = "give --metadata tokenizer=DIR, with DIR the folder that mep export writes of this checkpoint"
        elif isinstance(error, ImportError):
            remedy = f"install what it needs, or correct {file}" if is_own else "install what it needs"
        elif isinstance(error, ConnectionError):
            remedy = "load its data once with a network"
        else:
            remedy = f"correct {file}" if is_own else f"see {file.parent / 'README.md'} for what it needs"
        return Mistake("--tasks", name, f"cannot be loaded: {text}", remedy)


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
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
