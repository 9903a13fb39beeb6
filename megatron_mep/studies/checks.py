"""What makes arms comparable, looked up in what they left: initial weights, data order, settings and scored tokens."""

from collections.abc import Iterable, Iterator, Mapping

import yaml

from megatron_mep.checkpoint.files import RUN_FILE
from megatron_mep.checkpoint.resume import differences
from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.evaluation.rows import ResultRow
from megatron_mep.fingerprints import FILE, Fingerprints
from megatron_mep.studies.arms import Arm
from megatron_mep.studies.state import Way

TRAINED_WITH = ("model", "data", "training", "seed", "init_from")
"""The sections that say what an arm was trained with."""
AGAIN = "remove its folder and start the study again, or give the study another name"


class StudyError(UserError):
    """Arms cannot be compared, or some did not come to an end."""


def check_beginnings(arms: Iterable[Arm]) -> None:
    """A `StudyError` names every arm that began otherwise than the others of its size, length and seed.

    Arms that have not begun yet are left out.
    """
    mistakes: list[Mistake] = []
    firsts: dict[tuple[str | None, int, int], tuple[Arm, Fingerprints]] = {}
    for arm in (arm for arm in arms if (arm.run.folder / RUN_FILE).is_file()):
        mistakes += _other_settings(arm)
        own = Fingerprints.read(arm.run.folder)
        if own is None:
            rule = "must tell what the arm began with, and is not there or cannot be read"
            mistakes.append(Mistake(f"arm {arm.name}: {arm.run.folder / FILE}", None, rule, AGAIN))
            continue
        first, theirs = firsts.setdefault((arm.size, arm.train_length, arm.run.seed), (arm, own))
        for what, here, there in (
            ("weights", own.weights, theirs.weights),
            ("data_order", own.data_order, theirs.data_order),
        ):
            if here != there:
                rule = f"must be {there[:12]}... as in arm {first.name}, so that they differ in the encoding alone"
                mistakes.append(Mistake(f"arm {arm.name}: {what}", f"{here[:12]}...", rule, AGAIN))
    if mistakes:
        raise StudyError(mistakes)


def check_scored(rows: Mapping[str, Mapping[Way, ResultRow]]) -> None:
    """A `StudyError` names every arm whose rows scored other tokens than the first arm's of that protocol.

    Args:
        rows: Those of each arm, by its name.
    """
    mistakes: list[Mistake] = []
    firsts: dict[object, tuple[str, ResultRow]] = {}
    for name, own in rows.items():
        for row in own.values():
            # those of one protocol score the same tokens at every length; `blocks` and `sliding` do so alike
            kind = row.last_k if row.protocol == "last-k" else "beginning"
            first, theirs = firsts.setdefault(kind, (name, row))
            here, there = _scored(row), _scored(theirs)
            if here != there:
                rule = f"must be {there} as in arm {first}, so that the same tokens are compared"
                key = f"arm {name}: scored tokens of {row.protocol} at {row.length}"
                mistakes.append(Mistake(key, here, rule, "remove its rows and start the study again"))
    if mistakes:
        raise StudyError(mistakes)


def _scored(row: ResultRow) -> str:
    return f"{row.scored_tokens} with hash {row.scored_hash[:12]}, tokenizer {row.tokenizer_hash[:12]}"


def _other_settings(arm: Arm) -> Iterator[Mistake]:
    written = yaml.safe_load((arm.run.folder / RUN_FILE).read_text(encoding="utf-8"))
    now = arm.run.model_dump(mode="json")
    for section in TRAINED_WITH:
        for key, before, here in differences(written.get(section), now[section], section):
            yield Mistake(f"arm {arm.name}: {key}", here, f"was {before!r} when the arm began", AGAIN)
