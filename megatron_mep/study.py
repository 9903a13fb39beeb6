"""A study, composed: its arms are trained and measured in turn, each by ranks of its own, then compared."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from megatron_mep.checkpoint.disk import write_atomically
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.data.corpus import prepare
from megatron_mep.data.manifest import MANIFEST, Manifest
from megatron_mep.preflight import evaluation_mistakes, mistakes_in, preflight
from megatron_mep.studies.arms import Arm, Study, of_arms
from megatron_mep.studies.checks import StudyError, check_beginnings, check_scored
from megatron_mep.studies.state import is_evaluated, is_trained, planned_rows, rows_of
from megatron_mep.studies.summary import Summary, summary_of
from megatron_mep.studies.tables import as_csv, as_markdown

Start = Callable[[list[str]], int]
"""Runs a `mep` command on the ranks of an arm; its exit code."""
Say = Callable[[str], None]

NOW_ENOUGH = (os.EX_TEMPFAIL, 130, -2, -15)
"""Exit codes of ranks that somebody stopped, by a signal or the file STOP, and so means the study, too."""


def run_study(study: Study, start: Start, say: Say) -> int:
    """Trains and measures what is not done yet, arm by arm, and writes the summary.

    An arm that fails leaves the others to go on; a `StudyError` names all of them at the end. 75 where the study was
    asked to stop: started again, it goes on from there.
    """
    corpus = _ready(study, say)
    failed: list[Mistake] = []
    for arm in study.arms:
        code, stage = _run(arm, corpus, start, say)
        if code in NOW_ENOUGH:
            say(f"{study.config.study}: stopped in arm {arm.name}; to go on start it again as it was")
            return os.EX_TEMPFAIL
        if code:
            failed.append(_failure(arm, code, stage))
        else:
            check_beginnings(study.arms[: arm.index + 1])
    summary = summarize(study, corpus)
    say(_told(study, summary))
    if failed:
        raise StudyError(failed)
    return 0


def run_arm(study: Study, arm: Arm, start: Start, say: Say) -> int:
    """Trains and measures one arm alone."""
    code, stage = _run(arm, _ready(study, say), start, say)
    if code and code not in NOW_ENOUGH:
        raise StudyError(_failure(arm, code, stage))
    return os.EX_TEMPFAIL if code else 0


def summarize(study: Study, corpus: Manifest | None = None) -> Summary:
    """Checks that what is there of the arms can be compared, and writes the summary of it."""
    corpus = corpus or Manifest.load(Path(study.arms[0].run.data.folder))
    check_beginnings(study.arms)
    rows = {arm.name: planned_rows(arm, rows_of(arm), corpus) for arm in study.arms}
    check_scored(rows)
    missing = [arm.name for arm in study.arms if not (is_trained(arm) and is_evaluated(arm, corpus))]
    if len(missing) == len(study.arms):
        raise StudyError(Mistake(str(study.folder), None, "holds no arm that is trained and measured", "run the study"))
    summary = summary_of(study, rows, missing)
    texts = {"json": summary.model_dump_json(indent=2) + "\n", "csv": as_csv(summary), "md": as_markdown(summary)}
    study.folder.mkdir(parents=True, exist_ok=True)
    for kind, text in texts.items():
        write_atomically(study.folder / f"summary.{kind}", text)
    return summary


def arm_of(study: Study, index: int) -> Arm:
    """The arm of a number."""
    if not 0 <= index < len(study.arms):
        rule = f"is not the number of an arm: there are {len(study.arms)}, from 0"
        raise ConfigError(Mistake("--arm", index, rule, "see `mep study STUDY --dry-run`"))
    return study.arms[index]


def evaluation_of(arm: Arm) -> str:
    """The override that measures a checkpoint as the study asks for, whatever its own run file says."""
    return f"evaluation={json.dumps(arm.run.evaluation.model_dump(mode='json'))}"


def _ready(study: Study, say: Say) -> Manifest:
    """The corpus of all arms, prepared where it is not there yet; a `ConfigError` tells what stands against an arm."""
    data = study.arms[0].run.data
    if not (Path(data.folder) / MANIFEST).is_file():
        prepare(data, say)
    corpus = Manifest.load(Path(data.folder))
    found: dict[Mistake, list[str]] = {}
    for arm in study.arms:
        begun = mistakes_in(lambda arm=arm: preflight(arm.run, study.config.ranks))  # type: ignore[misc]
        for mistake in (*begun, *evaluation_mistakes(arm.run, corpus)):
            found.setdefault(mistake, []).append(arm.name)
    if found:
        raise ConfigError(of_arms(mistake, names) for mistake, names in found.items())
    check_beginnings(study.arms)
    return corpus


def _run(arm: Arm, corpus: Manifest, start: Start, say: Say) -> tuple[int, str]:
    """The exit code of the stage of an arm that ended last, and what it is; nothing is done twice."""
    if not is_trained(arm):
        arm.run_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arm.run_file, arm.run.yaml())
        say(f"arm {arm.index} {arm.name}: training")
        code = start(["train", str(arm.run_file)])
        if code or not is_trained(arm):
            return code or 1, "train"
    if not is_evaluated(arm, corpus):
        say(f"arm {arm.index} {arm.name}: evaluating")
        code = start(["evaluate", str(arm.run.folder), evaluation_of(arm), "--to", str(arm.rows_file)])
        if code or not is_evaluated(arm, corpus):
            return code or 1, "evaluate"
    return 0, ""


def _failure(arm: Arm, code: int, stage: str) -> Mistake:
    rule = f"ended with exit code {code} in `mep {stage}`"
    return Mistake(f"arm {arm.name}", None, rule, "correct what it says above and start the study again: it goes on")


def _told(study: Study, summary: Summary) -> str:
    left = f", without {', '.join(summary.missing)}" if summary.missing else ""
    return f"{study.config.study}: summary of {len(study.arms)} arms in {study.folder}/summary.md{left}"
