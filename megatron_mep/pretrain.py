"""A training run, composed: every part is built here, once, and the loop is started."""

import math
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from megatron_mep.acting import trained_model
from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.disk import write_atomically
from megatron_mep.checkpoint.files import RUN_FILE, newest
from megatron_mep.checkpoint.progress import Progress as Reached
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.checkpoint.saver import Saver
from megatron_mep.checkpoint.state import template_of
from megatron_mep.data.batches import TrainingBatches
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.facts import reached_after
from megatron_mep.fingerprints import fingerprint_order, fingerprint_weights, write_fingerprints
from megatron_mep.model.attention_work import take_attention_work
from megatron_mep.model.count import flops_per_token, padded_vocabulary
from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import in_force, learned_encoding_weights
from megatron_mep.model.interleaved import StageModel
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, seed_streams, shutdown
from megatron_mep.parallel.seeds import Purpose, seed_for
from megatron_mep.preflight import preflight
from megatron_mep.run import RunConfig
from megatron_mep.start import Start, checkpoints, start_of
from megatron_mep.training.attempts import Finished, unfinish
from megatron_mep.training.attention_metrics import attention_metrics
from megatron_mep.training.encoding_metrics import encoding_metrics
from megatron_mep.training.engine import build_engine
from megatron_mep.training.life import Life, life_of
from megatron_mep.training.loop import Job, train
from megatron_mep.training.metrics import MetricsWriter
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.progress import Progress
from megatron_mep.training.schedule import build_scheduler
from megatron_mep.training.signals import Signals
from megatron_mep.training.stopping import STOP_FILE, Stopped
from megatron_mep.training.watch import Seen, Watch
from megatron_mep.validating import validation_of

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


def pretrain(run: RunConfig, signals: Signals | None = None) -> float:
    """Trains to the last step, from the latest checkpoint where there is one; the last step's loss in nats per token.

    Collective: every process of the job calls it. `Stopped` leaves it where the run was asked to stop before, by a
    signal, a file or the clock; `signals` are those that are heard already.
    """
    with nullcontext(signals) if signals else Signals() as heard:
        environment = Environment.discover(os.environ)
        corpus = preflight(run, environment.world_size)
        groups = initialize(environment, run.parallel, run.seed, run.job.collective_timeout_s, run.job.startup_s)
        try:
            with life_of(run.folder, run.job, groups, heard) as life:
                start = start_of(run, corpus)
                reached = read_progress(start.own) if start.own else None
                if reached and reached.step >= run.training.steps:
                    return _finished_before(run, reached, start.attempt, life, groups.rank == 0)
                return _train(run, corpus, groups, start, life)
        finally:
            shutdown()


def _finished_before(run: RunConfig, reached: Reached, attempt: Attempt, life: Life, writes: bool) -> float:
    """The loss of a run that has come to its end already."""
    life.begin(reached.step)
    finished = Finished.read(run.folder)
    if finished is None:
        # it was killed between the last checkpoint and the marker
        finished = Finished.now(reached.step, reached.recent_losses[-1] if reached.recent_losses else math.nan)
        if writes:
            finished.write(run.folder)
    if writes:
        attempt.end()
    told = f"{run.name}: finished, {reached.step} steps are done, in {run.folder}; to go on raise training.steps"
    Progress(reached.step, run.training.steps, shown=writes).say(told)
    return math.nan if finished.loss is None else finished.loss


@dataclass(frozen=True)
class _Built:
    """What is trained, where the run starts."""

    model: StageModel
    engine: "DeepSpeedEngine"
    scheduler: OptimizerParamScheduler
    watch: Watch
    saver: Saver
    done_steps: int
    drawn: str | None
    """The fingerprint of the weights as drawn; `None` where the run goes on from a checkpoint of its own."""
    told: str
    """What acts in each layer."""


def _train(run: RunConfig, corpus: Manifest, groups: Groups, start: Start, life: Life) -> float:
    writes = groups.rank == 0
    built = _built(run, corpus, groups, start)
    samples = run.training.steps * run.training.global_batch_size
    batches = TrainingBatches(
        Path(run.data.folder),
        run.training.seq_length,
        run.seed,
        samples,
        Path(run.data.index_folder) if run.data.index_folder else None,
    )
    progress = Progress(built.done_steps, run.training.steps, shown=writes)
    lines = (f"{run.name}: from step {built.done_steps} on {groups.world_size} ranks", *start.told, built.told)
    progress.say("\n".join(lines))
    if writes:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(run.folder / RUN_FILE, run.yaml())
        unfinish(run.folder)
        if built.drawn is not None:
            write_fingerprints(run.folder, built.drawn, fingerprint_order(batches))
    life.begin(built.done_steps)
    metrics = MetricsWriter(run.folder, built.done_steps, run.logging.tensorboard) if writes else None
    job = _job(run, corpus, groups, life, built, batches, metrics, progress)
    try:
        with built.saver:
            loss = train(job, built.done_steps)
    finally:
        if metrics is not None:
            metrics.close()
    if writes:
        start.attempt.end()
    _conclude(run, life, loss, progress, writes)
    return loss


def _built(run: RunConfig, corpus: Manifest, groups: Groups, start: Start) -> _Built:
    model = build_model(
        trained_model(run, Tokenizer.load(Path(run.data.folder) / TOKENIZER)),
        run.parallel,
        corpus.vocab_size,
        run.seed,
        dtype_of(run.training.precision),
        run.training.recompute,
    )
    # weights start alike on all ranks, dropout does not
    seed_streams(seed_for(Purpose.DROPOUT, run.seed, groups.stream))
    told = in_force(model)
    # before the engine divides them, and a checkpoint is loaded over them
    drawn = fingerprint_weights(model) if start.own is None else None
    template = template_of(model)
    engine = build_engine(model, run.training, groups)
    reached = start.take_up(engine, template, groups)
    done_steps, seen = (reached.step, Seen.told_by(reached)) if reached else (0, Seen())
    scheduler = build_scheduler(engine.optimizer, run.training)
    scheduler.step(done_steps)
    saver = Saver(start.attempt, engine, template, run.yaml(), run.checkpoint, groups)
    return _Built(model, engine, scheduler, Watch(run.training, seen), saver, done_steps, drawn, told)


def _job(
    run: RunConfig,
    corpus: Manifest,
    groups: Groups,
    life: Life,
    built: _Built,
    batches: TrainingBatches,
    metrics: MetricsWriter | None,
    progress: Progress,
) -> Job:
    weights = learned_encoding_weights(built.model)
    padded = padded_vocabulary(corpus.vocab_size, groups.tensor_size)
    return Job(
        engine=built.engine,
        scheduler=built.scheduler,
        micro_batch=lambda first: batches.micro_batch(first, run.training.micro_batch_size),
        groups=groups,
        training=run.training,
        logging=run.logging,
        flops_per_token=flops_per_token(run.model, padded, run.training.seq_length),
        metrics=metrics,
        progress=progress,
        is_validation_due=partial(_is_due, run.validation.interval, run.training.steps),
        validate=validation_of(run, corpus, built.model, groups, metrics),
        is_save_due=partial(_is_due, run.checkpoint.interval or run.training.steps, run.training.steps),
        save=partial(_save, run, corpus, built.saver, groups, built.watch),
        publish=built.saver.publish,
        last_checkpoint=partial(_last_checkpoint, built.saver, checkpoints(run)),
        watch=built.watch,
        stopping=life.stopping,
        came_to=life.came_to,
        encoding_metrics=lambda: encoding_metrics(weights, groups),
        attention_metrics=lambda: attention_metrics(take_attention_work(built.model, groups)),
    )


def _conclude(run: RunConfig, life: Life, loss: float, progress: Progress, writes: bool) -> None:
    """Tells the end of the run, or raises `Stopped`."""
    step, steps, reason = life.log.step or 0, run.training.steps, life.stopping.reason
    if step == steps:
        if writes:
            Finished.now(step, loss).write(run.folder)
        progress.say(f"{run.name}: {steps} steps done, loss {loss:.6f}, in {run.folder}")
    else:
        saved = newest(checkpoints(run)) or "there is no checkpoint yet"
        first = f"remove {run.folder / STOP_FILE} and " if reason == STOP_FILE else ""
        told = f"stopped by {reason} after step {step} of {steps} ({saved}); to go on {first}start it again as it was"
        progress.say(f"{run.name}: {told}")
    progress.close()
    if step < steps:
        assert reason is not None, "a run ends before its last step only where it was asked to"
        raise Stopped(reason)


def _save(run: RunConfig, corpus: Manifest, saver: Saver, groups: Groups, watch: Watch, step: int) -> None:
    saver.save(replace(reached_after(step, run, corpus, groups), **vars(watch.seen)))


def _last_checkpoint(saver: Saver, root: Path) -> Path | None:
    saver.finish()
    return newest(root)


def _is_due(interval: int, steps: int, step: int) -> bool:
    return interval > 0 and (step % interval == 0 or step == steps)
