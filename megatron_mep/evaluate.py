"""An evaluation, composed: a checkpoint is loaded at any layout, measured, and the rows are written."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tqdm import tqdm

from megatron_mep.checkpoint.files import RUN_FILE, find
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.checkpoint.resume import check_tokenizer
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.loader import load_tree
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.validation import validation_tokens
from megatron_mep.evaluation.perplexity import DataParallel
from megatron_mep.evaluation.plan import Plan
from megatron_mep.evaluation.resume import is_among
from megatron_mep.evaluation.rows import Measurement, ResultRow, append_rows
from megatron_mep.evaluation.suite import Progress, evaluate_lengths
from megatron_mep.facts import facts_of
from megatron_mep.loaded import loaded_model
from megatron_mep.measured import measured_rows
from megatron_mep.model.attention_work import take_attention_work
from megatron_mep.model.in_force import in_force
from megatron_mep.model.score import scorer, sum_over_data_ranks
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, shutdown
from megatron_mep.parallel.watchdog import Watchdog
from megatron_mep.run import RunConfig, overridden, run_of
from megatron_mep.training.precision import dtype_of

PROGRESS_EVERY_S = 10.0


def evaluate(checkpoint: Path, overrides: Iterable[str] = (), to: Path | None = None, again: bool = False) -> Path:
    """Measures a checkpoint as its run file and the overrides say; the file that the rows were added to.

    What the file tells of the same checkpoint already is not measured, unless `again` says so.

    Collective: every process of the job calls it. The layout is the job's own, whatever it was in training.
    """
    folder = find(checkpoint)
    # no stage of ZeRO acts where nothing is trained, and stages of a pipeline take this one
    run = overridden(run_of(load_tree(folder / RUN_FILE)), ["training.zero_stage=1", *overrides])
    environment = Environment.discover(os.environ)
    run.parallel.data(environment.world_size)
    mistakes = list(_lengths_split(run))
    if mistakes:
        raise ConfigError(mistakes)
    corpus = Manifest.load(Path(run.data.folder))
    check_tokenizer(read_progress(folder), corpus.tokenizer_sha256, folder)
    job, of_run = run.job, folder.parent.parent
    groups = initialize(environment, run.parallel, run.seed, job.collective_timeout_s, job.startup_s)
    try:
        with Watchdog.of_job(groups.rank, groups.world_size, job, of_run) as watchdog:
            rows = to or of_run / "evaluation" / f"{folder.name}.jsonl"
            return _evaluate(run, corpus, folder, rows, again, groups, watchdog.tick)
    finally:
        shutdown()


def _evaluate(
    run: RunConfig,
    corpus: Manifest,
    folder: Path,
    to: Path,
    again: bool,
    groups: Groups,
    came_on: Callable[[], None],
) -> Path:
    text = Path(run.data.folder)
    tokenizer = Tokenizer.load(text / TOKENIZER)
    model = loaded_model(run, tokenizer, folder, groups, dtype_of(run.training.precision))
    told = _Teller(groups.rank == 0, came_on)
    told.say(f"{folder}, trained at {run.training.seq_length}\n{in_force(model)}")
    facts = facts_of(run, corpus, read_progress(folder), groups, model, "evaluation", str(folder))
    known = measured_rows(to, ResultRow, facts, folder, again)
    stream = validation_tokens(text)

    def is_done(plan: Plan) -> bool:
        found = is_among(known, plan, stream)
        if found:
            told.say(f"{plan.protocol:7} length {plan.length:6}  context {plan.context:4}  is in {to} (--again)")
        return found

    measurements = evaluate_lengths(
        scorer(model, groups),
        stream,
        run.evaluation,
        run.training.seq_length,
        data_parallel=DataParallel(groups.data_rank, groups.data_size, sum_over_data_ranks(groups)),
        token_bytes=tokenizer.num_bytes,
        end_of_document=corpus.end_of_document,
        is_done=is_done,
        report=told.progress,
        attention_work=lambda: take_attention_work(model, groups),
    )
    for measured in measurements:
        told.measured(measured)
        if groups.rank == 0:
            append_rows(to, [ResultRow.of(facts, measured, datetime.now(UTC))])
    told.say(f"rows in {to}")
    return to


def _lengths_split(run: RunConfig) -> Iterator[Mistake]:
    """Under sequence and context parallelism every forwarded window is divided over the ranks."""
    parallel = run.parallel
    windows = (*run.evaluation.resolved(run.training.seq_length).lengths, run.training.seq_length)
    uneven = [length for length in windows if length % parallel.sequence_multiple]
    if uneven:
        key, value = ("context", "1") if parallel.context > 1 else ("sequence", "false")
        yield Mistake("evaluation.lengths", uneven, f"must be multiples of {parallel.sequence_multiple} "
                      f"{parallel.dividing}", f"override parallel.{key}={value}")  # fmt: skip


class _Teller:
    """Tells the person who waits, on one rank."""

    def __init__(self, tells: bool, came_on: Callable[[], None]) -> None:
        self._tells, self._came_on = tells, came_on
        self._last_s = time.monotonic()

    def say(self, line: str) -> None:
        """A line."""
        if self._tells:
            print(line, flush=True)  # noqa: T201

    def progress(self, progress: Progress) -> None:
        """How far the evaluation is, every few seconds."""
        self._came_on()
        now = time.monotonic()
        if now - self._last_s >= PROGRESS_EVERY_S:
            self._last_s = now
            left = tqdm.format_interval(progress.left_s)
            share = progress.done_tokens / progress.all_tokens
            self.say(f"  {share:.0%} of all tokens  {progress.tokens_per_s:,.0f} tokens/s  left {left}")

    def measured(self, measured: Measurement) -> None:
        """One measurement."""
        perplexity = "not finite" if measured.perplexity is None else f"{measured.perplexity:.4f}"
        bits = "" if measured.bits_per_byte is None else f"  bits per byte {measured.bits_per_byte:.4f}"
        kept = "" if measured.attention_kept is None else (
            f"  attention computed {measured.attention_kept:.1%}, dropped at most {measured.attention_dropped:.1e}"
        )  # fmt: skip
        self.say(
            f"{measured.protocol:7} length {measured.length:6}  context {measured.context:4}  "
            f"perplexity {perplexity}{bits}  {measured.tokens_per_s:,.0f} tokens/s{kept}"
        )
