"""A training run, composed: every part is built here, once, and the loop is started."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from megatron_mep.acting import trained_model
from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.disk import write_atomically
from megatron_mep.checkpoint.files import RUN_FILE, newest
from megatron_mep.checkpoint.save import save_checkpoint
from megatron_mep.checkpoint.state import Sharded, template_of
from megatron_mep.data.batches import TrainingBatches
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.validation import validation_tokens
from megatron_mep.evaluation.perplexity import DataParallel
from megatron_mep.evaluation.rows import ResultRow, append_rows
from megatron_mep.evaluation.suite import validate
from megatron_mep.facts import facts_of, reached_after
from megatron_mep.model.attention_work import take_attention_work
from megatron_mep.model.count import flops_per_token, padded_vocabulary
from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import in_force, learned_encoding_weights
from megatron_mep.model.score import scorer, sum_over_data_ranks
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, seed_streams, shutdown
from megatron_mep.preflight import preflight
from megatron_mep.run import RunConfig
from megatron_mep.start import start_of
from megatron_mep.training.attention_metrics import attention_metrics
from megatron_mep.training.encoding_metrics import encoding_metrics
from megatron_mep.training.engine import build_engine
from megatron_mep.training.loop import Job, train
from megatron_mep.training.metrics import Metrics, MetricsWriter
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.progress import Progress
from megatron_mep.training.schedule import build_scheduler
from megatron_mep.training.watch import Seen, Watch

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

VALIDATION_FILE = "validation.jsonl"


def pretrain(run: RunConfig) -> float:
    """Trains to the last step, from the latest checkpoint where there is one; the last step's loss in nats per token.

    Collective: every process of the job calls it.
    """
    environment = Environment.discover(os.environ)
    corpus = preflight(run, environment.world_size)
    groups = initialize(environment, run.parallel, run.seed)
    try:
        return _train(run, corpus, groups)
    finally:
        shutdown()


def _train(run: RunConfig, corpus: Manifest, groups: Groups) -> float:
    writes = groups.rank == 0
    start = start_of(run, corpus)
    model = build_model(
        trained_model(run, Tokenizer.load(Path(run.data.folder) / TOKENIZER)),
        run.parallel,
        corpus.vocab_size,
        run.seed,
        dtype_of(run.training.precision),
        run.training.recompute,
    )
    # weights start alike on all ranks, dropout does not
    seed_streams(run.seed + groups.stream)
    told = in_force(model)
    template = template_of(model)
    engine = build_engine(model, run.training, groups)
    reached = start.take_up(engine, template, groups)
    done_steps, seen = (reached.step, Seen.told_by(reached)) if reached else (0, Seen())
    watch = Watch(run.training, seen)
    scheduler = build_scheduler(engine.optimizer, run.training)
    scheduler.step(done_steps)
    samples = run.training.steps * run.training.global_batch_size
    batches = TrainingBatches(
        Path(run.data.folder),
        run.training.seq_length,
        run.seed,
        samples,
        Path(run.data.index_folder) if run.data.index_folder else None,
    )
    progress = Progress(done_steps, run.training.steps, shown=writes)
    lines = (f"{run.name}: from step {done_steps} on {groups.world_size} ranks", *start.told, told)
    progress.say("\n".join(lines))
    if writes:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(run.folder / RUN_FILE, run.yaml())
    metrics = MetricsWriter(run.folder, done_steps, run.logging.tensorboard) if writes else None
    weights = learned_encoding_weights(model)
    padded = padded_vocabulary(corpus.vocab_size, groups.tensor_size)
    job = Job(
        engine=engine,
        scheduler=scheduler,
        micro_batch=lambda first: batches.micro_batch(first, run.training.micro_batch_size),
        groups=groups,
        training=run.training,
        logging=run.logging,
        flops_per_token=flops_per_token(run.model, padded, run.training.seq_length),
        metrics=metrics,
        progress=progress,
        is_validation_due=partial(_is_due, run.validation.interval, run.training.steps),
        validate=_validation(run, corpus, engine.module, groups),
        is_save_due=partial(_is_due, run.checkpoint.interval or run.training.steps, run.training.steps),
        save=partial(_save, run, corpus, start.attempt, engine, template, groups, watch),
        last_checkpoint=lambda: newest(start.attempt.root),
        watch=watch,
        encoding_metrics=lambda: encoding_metrics(weights, groups),
        attention_metrics=lambda: attention_metrics(take_attention_work(model, groups)),
    )
    try:
        loss = train(job, done_steps)
    finally:
        if metrics is not None:
            metrics.close()
    if writes:
        start.attempt.end()
    progress.say(f"{run.name}: {run.training.steps} steps done, loss {loss:.6f}, in {run.folder}")
    progress.close()
    return loss


def _save(
    run: RunConfig,
    corpus: Manifest,
    attempt: Attempt,
    engine: "DeepSpeedEngine",
    template: Sharded,
    groups: Groups,
    watch: Watch,
    step: int,
) -> None:
    reached = replace(reached_after(step, run, corpus, groups), **vars(watch.seen))
    save_checkpoint(attempt, engine, template, reached, run.yaml(), run.checkpoint, groups)


def _is_due(interval: int, steps: int, step: int) -> bool:
    return interval > 0 and (step % interval == 0 or step == steps)


def _validation(run: RunConfig, corpus: Manifest, model: nn.Module, groups: Groups) -> Callable[[int], Metrics]:
    """Perplexity on held-out text after a step, also written as a result row."""
    score = scorer(model, groups.device)
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
        if groups.rank == 0:
            facts = facts_of(run, corpus, reached_after(step, run, corpus, groups), groups, model, "validation")
            append_rows(run.folder / VALIDATION_FILE, [ResultRow.of(facts, measured, datetime.now(UTC))])
        found = {"validation_loss": measured.nll, "validation_bits_per_byte": measured.bits_per_byte}
        return {name: value for name, value in found.items() if value is not None}

    return measure
