"""Whether a run file continues the run that wrote a checkpoint."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from megatron_mep.checkpoint.progress import Progress
from megatron_mep.config.errors import CheckpointError, Mistake

LAYOUT = (
    "name",
    "runs",
    "init_from",
    "data.folder",
    "data.num_threads",
    "data.index_folder",
    "model.attention_backend",
    "model.attention_epsilon",
    "parallel",
    "job",
    "training.micro_batch_size",
    "training.zero_stage",
    "training.recompute",
    "checkpoint",
    "validation",
    "evaluation",
    "extrapolation",
    "generation",
    "probes",
    "logging",
)
"""What may differ without a word: where things lie, how the work is laid out, and what is only observed."""

COURSE = ("training.steps", "training.schedule", "training.non_finite", "training.spike")
"""What may differ and is told: a run can be made longer, its learning rate then takes another course, and steps that
were skipped may be taken.
"""


Resolve = Callable[[Any], dict[str, Any]]
"""A run file's tree, all that it leaves out filled in."""


def check_continues(written: Path, resolved: dict[str, Any], resolve: Resolve) -> list[str]:
    """What differs from the run file that a checkpoint was written under, and is allowed to; a line each.

    A `CheckpointError` names every key that would make it another run. A key that was not known when the file was
    written had what is its default today.
    """
    before = resolve(_run_file(written))
    differing = [found for found in differences(before, resolved) if not _within(found[0], LAYOUT)]
    refused = [
        Mistake(key, now, f"was {then!r} when {written.parent} was written", "set it back, or give the run a new name")
        for key, then, now in differing
        if not _within(key, COURSE)
    ]
    if refused:
        raise CheckpointError(refused)
    return [f"{key} is {now!r} from here on, it was {then!r}" for key, then, now in differing]


def check_corpus(reached: Progress, fingerprint: str, folder: Path) -> None:
    """Refuses to continue on another corpus: samples are counted in the one that the checkpoint was trained on."""
    if reached.corpus_fingerprint != fingerprint:
        raise CheckpointError(
            Mistake("data.folder", fingerprint, f"holds another corpus than {folder} was trained on",
                    "point it at that corpus, or give the run a new name")
        )  # fmt: skip


def check_tokenizer(reached: Progress, tokenizer_sha256: str, folder: Path) -> None:
    """Refuses to score text that another tokenizer has cut."""
    if reached.tokenizer_sha256 != tokenizer_sha256:
        raise CheckpointError(
            Mistake("data.folder", None, f"was prepared with another tokenizer than {folder} was trained with",
                    "prepare the text with the checkpoint's tokenizer: data.tokenizer.kind=sentencepiece")
        )  # fmt: skip


def differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every key below `key` whose value is another one: the key, what it was and what it is."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield key, before, now


def _run_file(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        rule, remedy = f"cannot be read ({error})", "restore it from a copy, or give the run a new name"
        raise CheckpointError(Mistake(str(file), None, rule, remedy)) from None


def _within(key: str, sections: tuple[str, ...]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)
