"""Tasks that cannot be asked: each is told with its remedy, before a model is loaded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_mep.harness.length import HarnessError
from megatron_mep.harness.tasks import Tasks
from tests.harness.local_tasks import CHOICE, NUM_QUESTIONS, TASKS, write_tasks
from tests.harness.strange_tasks import NUM_SHOTS, UNSAFE, UNSAFE_GROUP, UNSAFE_TAG, write_strange_tasks
from tests.support.distributed import joined, run

pytest.importorskip("lm_eval.evaluator", reason="needs pip install 'megatron-mep[harness]'")

CASES: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    "unsafe": ([UNSAFE, "toy_choice"], {}, [f"--tasks = '{UNSAFE}': runs code that the model writes"]),
    "unsafe group": ([UNSAFE_GROUP], {}, [f"--tasks = '{UNSAFE_GROUP}': runs code"]),
    "unsafe tag": ([UNSAFE_TAG], {}, [f"--tasks = '{UNSAFE_TAG}': runs code"]),
    # as a file of its own
    "unsafe file": ([f"{UNSAFE}.yaml"], {}, [f"{UNSAFE}.yaml': runs code"]),
    # it is loaded, and then has no data
    "confirmed": ([UNSAFE], {"confirm_run_unsafe_code": True}, [f"--tasks = '{UNSAFE}': cannot be loaded: Attr"]),
    "several": (
        ["strange_text", "strange_kind", "strange_function", "strange_module"],
        {},
        [
            "--tasks = 'strange_text': cannot be loaded: TemplateAssertionError: No filter named 'unknown'",
            "--tasks = 'strange_kind': cannot be loaded: ValueError: Got invalid output_type 'riddle'",
            "--tasks = 'strange_function': cannot be loaded: AttributeError: Module",
            "--tasks = 'strange_module': cannot be loaded: ImportError: Cannot import",
        ],
    ),
    "file": (["strange_file"], {}, ["--tasks = 'strange_file': cannot be loaded: FileNotFoundError: Unable to find"]),
    "data": (["strange_data"], {}, ["strange_data': cannot be loaded: ConnectionError: Couldn't reach"]),
    "sized": (["strange_sized"], {}, ["give --metadata tokenizer=DIR, with DIR the folder that mep export writes"]),
    "sizes": (["strange_sized"], {"metadata": {"tokenizer": "x"}}, []),
    "picture": (["strange_picture"], {}, ["--tasks = 'strange_picture': "]),
    "shots": (
        ["strange_shots"], {"num_fewshot": NUM_SHOTS}, ["--num-fewshot = 2: is more than the 1 examples of strange"]
    ),
    "fewer shots": (["strange_shots"], {"num_fewshot": NUM_SHOTS - 1}, []),
    "samples": (
        ["toy_choice"],
        {"samples": {"toy_choise": [0], CHOICE: [0, NUM_QUESTIONS]}},
        [
            "--samples = 'toy_choise': is none of the tasks that are asked; did you mean 'toy_choice'?",
            f"--samples = {NUM_QUESTIONS}: must be below {NUM_QUESTIONS}, the questions of toy_choice",
        ],
    ),
    "all": (list(TASKS), {"samples": {CHOICE: [0, NUM_QUESTIONS - 1]}}, []),
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loading")
    tasks = write_strange_tasks(folder)
    for own in write_tasks(folder).iterdir():
        own.rename(tasks / own.name)
    return tasks


@pytest.fixture(scope="module")
def told(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is told of each case."""
    file = tmp_path_factory.mktemp("told") / "told.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        run(_load_all, 1, tasks, file)
    found: dict[str, list[str]] = json.loads(file.read_text())
    return found


def _load_all(folder: Path, to: Path) -> None:
    joined()
    told = {case: _told(folder, names, options) for case, (names, options, _) in CASES.items()}
    to.write_text(json.dumps(told))


def _told(folder: Path, names: list[str], options: dict[str, Any]) -> list[str]:
    from megatron_mep.harness.loading import Manager

    ticks: list[None] = []
    names = [str(folder / name) if name.endswith(".yaml") else name for name in names]
    tasks = replace(Tasks(tuple(names), include_path=folder), **options)
    manager = Manager(tasks, lambda: ticks.append(None), include_defaults=False)
    try:
        loaded = manager.load(names)
    except HarnessError as error:
        return [str(mistake) for mistake in error.mistakes]
    assert list(loaded["tasks"]) == names
    assert len(ticks) == len(names)
    return []


@pytest.mark.parametrize("case", CASES)
def test_tasks_that_cannot_be_asked_are_told(case: str, told: dict[str, list[str]]) -> None:
    expected = CASES[case][2]
    assert len(told[case]) == len(expected), told[case]
    for found, part in zip(told[case], expected, strict=True):
        assert part in found


def test_files_of_tasks_need_none_of_the_harness_own(tasks: Path) -> None:
    from megatron_mep.harness.loading import found

    file = str(tasks / f"{CHOICE}.yaml")
    manager, names = found(Tasks((file, file)), lambda: None)
    assert names == [file]
    assert manager.all_tasks == []


@pytest.mark.slow
def test_names_that_are_none_are_told_with_files_that_are_passed_over(tasks: Path) -> None:
    from megatron_mep.harness.loading import found

    with pytest.raises(HarnessError) as caught:
        found(Tasks(("toy_choise", "absent.yaml", "toy_rolling"), include_path=tasks), lambda: None)
    misspelt, absent, broken = map(str, caught.value.mistakes)
    assert misspelt == "--tasks = 'toy_choise': is no task that lm-eval knows; did you mean 'toy_choice'?"
    assert absent == "--tasks = 'absent.yaml': is no file; check the path"
    assert broken.startswith(f"{tasks / 'strange_yaml.yaml'}: is no task's file: ParserError: while parsing")
