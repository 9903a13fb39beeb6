"""What is asked of a checkpoint: tasks of lm-evaluation-harness by their names, and its options for them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seeds:
    """Where the harness' draws begin; its own defaults."""

    python: int = 0
    numpy: int = 1234
    torch: int = 1234
    fewshot: int = 1234


@dataclass(frozen=True)
class Tasks:
    """What is asked, as the harness' own options of the same names say it."""

    names: tuple[str, ...]
    """Names or patterns of tasks, groups and tags, or files of tasks."""
    include_path: Path | None = None
    """A folder of the user's own tasks."""
    num_fewshot: int | None = None
    limit: float | None = None
    samples: dict[str, list[int]] | None = None
    """Which questions of a task are asked, by their numbers, ascending."""
    log_samples: bool = False
    predict_only: bool = False
    """Answers are written, and no metrics computed."""
    system_instruction: str | None = None
    gen_kwargs: dict[str, Any] = field(default_factory=dict)
    """Goes before what tasks say of how text is generated."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What tasks are told that make their own data."""
    seeds: Seeds = Seeds()
    confirm_run_unsafe_code: bool = False
