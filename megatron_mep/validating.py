"""Perplexity on held-out text while a run trains."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.validation import validation_tokens
from megatron_mep.evaluation.perplexity import DataParallel
from megatron_mep.evaluation.rows import ResultRow, append_rows
from megatron_mep.evaluation.suite import validate
from megatron_mep.facts import facts_of, reached_after
from megatron_mep.model.attention_work import take_attention_work
from megatron_mep.model.interleaved import StageModel
from megatron_mep.model.score import scorer, sum_over_data_ranks
from megatron_mep.parallel.groups import Groups
from megatron_mep.run import RunConfig
from megatron_mep.training.metrics import Metrics, MetricsWriter

VALIDATION_FILE = "validation.jsonl"


def validation_of(
    run: RunConfig, corpus: Manifest, model: StageModel, groups: Groups, metrics: MetricsWriter | None
) -> Callable[[int], Metrics]:
    """Perplexity on held-out text after a step, also written as a result row, and by position among the metrics."""
    score = scorer(model, groups)
    folder = Path(run.data.folder)
    stream, num_bytes = validation_tokens(folder), Tokenizer.load(folder / TOKENIZER).num_bytes
    place = DataParallel(groups.data_rank, groups.data_size, sum_over_data_ranks(groups))

    def measure(step: int) -> Metrics:
        measured = validate(
            score,
            stream,
            run.validation,
            run.training.seq_length,
            run.evaluation.batch_tokens,
            data_parallel=place,
            token_bytes=num_bytes,
            attention_work=lambda: take_attention_work(model, groups),
        )
        facts = facts_of(run, corpus, reached_after(step, run, corpus, groups), groups, model, "validation")
        if groups.rank == 0:
            append_rows(run.folder / VALIDATION_FILE, [ResultRow.of(facts, measured, datetime.now(UTC))])
        if metrics is not None and measured.position_ends and measured.position_nll:
            metrics.write_by_position(step, measured.position_ends, measured.position_nll)
        found = {"validation_loss": measured.nll, "validation_bits_per_byte": measured.bits_per_byte}
        return {name: value for name, value in found.items() if value is not None}

    return measure
