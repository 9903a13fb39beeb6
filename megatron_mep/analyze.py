"""An analysis, composed: a checkpoint is loaded, observed on held-out text by length, and the rows are written."""

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from megatron_mep.analysis.lengths import Ranks, analyses, is_among
from megatron_mep.analysis.rows import Analysis, AnalysisRow
from megatron_mep.checkpoint.files import RUN_FILE, find
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.config.loader import load_tree
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.validation import validation_tokens
from megatron_mep.evaluation.perplexity import DataParallel
from megatron_mep.evaluation.rows import append_rows
from megatron_mep.facts import facts_of
from megatron_mep.loaded import loaded_whole
from megatron_mep.measured import measured_rows
from megatron_mep.model.in_force import in_force
from megatron_mep.model.observe import observer_of, of_all_heads
from megatron_mep.model.score import sum_over_data_ranks
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, shutdown
from megatron_mep.parallel.watchdog import Watchdog
from megatron_mep.run import RunConfig, overridden, run_of
from megatron_mep.training.precision import dtype_of
from megatron_mep.undivided import UNDIVIDED, corpus_for

WHY_UNDIVIDED = "attention is looked at in whole sequences, in all layers of one pass"


def analyze(checkpoint: Path, overrides: Iterable[str] = (), to: Path | None = None, again: bool = False) -> Path:
    """Analyzes a checkpoint as its run file and the overrides say; the file that rows were added to.

    Lengths that the file tells of the same checkpoint already are left out, unless `again` says otherwise.

    Collective: every process of the job calls it. Tensor ranks share the model, data ranks the windows.
    """
    folder = find(checkpoint)
    run = overridden(run_of(load_tree(folder / RUN_FILE)), [*UNDIVIDED, *overrides])
    environment = Environment.discover(os.environ)
    corpus = corpus_for(run, folder, environment.world_size, WHY_UNDIVIDED)
    job, of_run = run.job, folder.parent.parent
    rows = to or of_run / "analysis" / f"{folder.name}.jsonl"
    groups = initialize(environment, run.parallel, run.seed, job.collective_timeout_s, job.startup_s)
    try:
        with Watchdog.of_job(groups.rank, groups.world_size, job, of_run) as watchdog:
            _analyze(run, corpus, folder, rows, again, groups, watchdog.tick)
    finally:
        shutdown()
    return rows


def _analyze(
    run: RunConfig,
    corpus: Manifest,
    folder: Path,
    rows: Path,
    again: bool,
    groups: Groups,
    came_on: Callable[[], None],
) -> None:
    text = Path(run.data.folder)
    tokenizer = Tokenizer.load(text / TOKENIZER)
    model = loaded_whole(run, tokenizer, folder, groups, dtype_of(run.training.precision))
    tells = groups.rank == 0
    if tells:
        print(f"{folder}, trained at {run.training.seq_length}\n{in_force(model)}", flush=True)  # noqa: T201
    facts = facts_of(run, corpus, read_progress(folder), groups, model, "evaluation", str(folder))
    place = DataParallel(groups.data_rank, groups.data_size, sum_over_data_ranks(groups))
    observe, ranks = observer_of(model, groups), Ranks(place, of_all_heads(groups), came_on)
    known = measured_rows(rows, AnalysisRow, facts, folder, again)

    def is_done(length: int, scored_hash: str) -> bool:
        found = is_among(known, length, scored_hash, run.analysis)
        if found and tells:
            print(f"length {length:6}  is in {rows} (--again)", flush=True)  # noqa: T201
        return found

    stream, train_length = validation_tokens(text), run.training.seq_length
    for analysis in analyses(observe, stream, run.analysis, train_length, ranks, is_done):
        if tells:
            append_rows(rows, [AnalysisRow.of(facts, analysis, datetime.now(UTC))])
            print(_line(analysis), flush=True)  # noqa: T201
    if tells:
        print(f"rows in {rows}", flush=True)  # noqa: T201


def _line(analysis: Analysis) -> str:
    field = "gradients are not finite" if analysis.receptive_field is None else (
        f"receptive field {analysis.receptive_field:6} ({analysis.receptive_field_share:.0%} of the gradient)"
    )  # fmt: skip
    attended = "scores are not finite"
    if analysis.attention_distance is not None:
        heads = [distance for layer in analysis.attention_distance for distance in layer]
        attended = f"heads attend {min(heads):.1f} to {max(heads):.1f} tokens back on average"
    return f"length {analysis.length:6}  {field}  {attended}"
