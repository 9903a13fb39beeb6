"""A probe, composed: a checkpoint is loaded, asked questions with known answers by length, and the rows are written."""

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from megatron_mep.checkpoint.files import RUN_FILE, find
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.loader import apply_overrides, load_tree, merge
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.validation import validation_tokens
from megatron_mep.evaluation.perplexity import DataParallel
from megatron_mep.evaluation.rows import append_rows
from megatron_mep.facts import facts_of
from megatron_mep.loaded import loaded_whole, opening
from megatron_mep.measured import measured_rows
from megatron_mep.model.in_force import in_force
from megatron_mep.model.score import sum_over_data_ranks
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, shutdown
from megatron_mep.parallel.watchdog import Watchdog
from megatron_mep.probes.asking import answers_of, is_answered
from megatron_mep.probes.material import Material
from megatron_mep.probes.rows import Answers, ProbeRow
from megatron_mep.probes.sets import Cache, SampleSet, sets_of
from megatron_mep.run import RunConfig, run_of
from megatron_mep.training.precision import dtype_of
from megatron_mep.undivided import UNDIVIDED, corpus_for

WHY_UNDIVIDED = "answers are read and written token by token"


def probe(
    checkpoint: Path,
    overrides: Iterable[str] = (),
    suite: Path | None = None,
    to: Path | None = None,
    again: bool = False,
) -> Path:
    """Asks a checkpoint what its run file, a suite over it and the overrides say; the file that rows were added to.

    What the file tells of the same checkpoint already is not asked, unless `again` says so.

    Collective: every process of the job calls it. Tensor ranks share the model, data ranks the questions.
    """
    folder = find(checkpoint)
    run = _run(folder, overrides, suite)
    environment = Environment.discover(os.environ)
    corpus = corpus_for(run, folder, environment.world_size, WHY_UNDIVIDED)
    text = Path(run.data.folder)
    material = Material(Tokenizer.load(text / TOKENIZER), validation_tokens(text))
    # every rank makes what is not kept yet, alike: a mistake is found by all, before any of them waits for another
    cache = Cache(Path(run.data.index_folder or text) / "probes", writes=environment.rank == 0)
    sets = sets_of(run.probes, run.training.seq_length, material, corpus.fingerprint, cache)
    job, of_run = run.job, folder.parent.parent
    rows = to or of_run / "probes" / f"{folder.name}.jsonl"
    groups = initialize(environment, run.parallel, run.seed, job.collective_timeout_s, job.startup_s)
    try:
        with Watchdog.of_job(groups.rank, groups.world_size, job, of_run) as watchdog:
            _probe(run, corpus, sets, material.tokenizer, folder, rows, again, groups, watchdog.tick)
    finally:
        shutdown()
    return rows


def _run(folder: Path, overrides: Iterable[str], suite: Path | None) -> RunConfig:
    tree = run_of(load_tree(folder / RUN_FILE)).model_dump(mode="json")
    if suite is not None:
        stated = load_tree(suite)
        beside = sorted(set(stated) - {"probes"})
        if beside:
            rule = "is no section of a suite, which holds probes alone"
            raise ConfigError(Mistake(f"{suite}: {key}", None, rule, "leave it out") for key in beside)
        tree = merge(tree, stated)
    return run_of(apply_overrides(tree, [*UNDIVIDED, *overrides]))


def _probe(
    run: RunConfig,
    corpus: Manifest,
    sets: list[SampleSet],
    tokenizer: Tokenizer,
    folder: Path,
    rows: Path,
    again: bool,
    groups: Groups,
    came_on: Callable[[], None],
) -> None:
    model = loaded_whole(run, tokenizer, folder, groups, dtype_of(run.training.precision))
    tells = groups.rank == 0
    if tells:
        print(f"{folder}, trained at {run.training.seq_length}\n{in_force(model)}", flush=True)  # noqa: T201
    facts = facts_of(run, corpus, read_progress(folder), groups, model, "evaluation", str(folder))
    place = DataParallel(groups.data_rank, groups.data_size, sum_over_data_ranks(groups))
    opened = opening(model, tokenizer.vocab_size, run.probes.prefill_chunk, came_on)
    known = measured_rows(rows, ProbeRow, facts, folder, again)
    for asked in sets:
        if is_answered(known, asked, run.probes):
            if tells:
                print(f"{_question(asked)}  is in {rows} (--again)", flush=True)  # noqa: T201
            continue
        answers = answers_of(asked, opened, run.probes, tokenizer, place)
        assert answers.oracle == 100, f"{asked.task.name} at {asked.length} cannot be answered: the probe is wrong"
        if tells:
            append_rows(rows, [ProbeRow.of(facts, answers, datetime.now(UTC))])
            print(f"{_question(asked)}  {_line(answers)}", flush=True)  # noqa: T201
    if tells:
        print(f"rows in {rows}", flush=True)  # noqa: T201


def _question(asked: SampleSet) -> str:
    depth = "" if asked.depth is None else f"  depth {asked.depth:4.0%}"
    options = "".join(f" {option}={value}" for option, value in asked.options.items())
    return f"{asked.task.name}{options}  length {asked.length:6}{depth}"


def _line(answers: Answers) -> str:
    scores = [
        f"{name} {value:{form}}"
        for name, value, form in (
            ("found", answers.found, "5.1f"),
            ("exact", answers.exact, "5.1f"),
            ("tokens", answers.token_accuracy, "5.1f"),
            ("rank", answers.mean_rank, ".1f"),
        )
        if value is not None
    ]
    return "  ".join(scores) if scores else f"logits of {answers.non_finite} questions are not finite"
