"""What every result row says of the model that was measured, in training and from a checkpoint alike."""

from importlib.metadata import version
from typing import Literal

from megatron_mep.checkpoint.progress import Progress
from megatron_mep.data.manifest import Manifest
from megatron_mep.evaluation.rows import ModelFacts
from megatron_mep.model.count import num_parameters, padded_vocabulary
from megatron_mep.model.in_force import backends_in_force
from megatron_mep.model.interleaved import StageModel
from megatron_mep.parallel.groups import Groups
from megatron_mep.run import RunConfig


def reached_after(step: int, run: RunConfig, corpus: Manifest, groups: Groups) -> Progress:
    """How far a run is after a step."""
    samples = step * run.training.global_batch_size
    return Progress(
        step=step,
        consumed_samples=samples,
        consumed_tokens=samples * run.training.seq_length,
        tokenizer_sha256=corpus.tokenizer_sha256,
        corpus_fingerprint=corpus.fingerprint,
        tensor_size=groups.tensor_size,
        data_size=groups.data_size,
        context_size=groups.context_size,
        pipeline_size=groups.pipeline_size,
    )


def facts_of(
    run: RunConfig,
    corpus: Manifest,
    reached: Progress,
    groups: Groups,
    model: StageModel,
    purpose: Literal["evaluation", "validation"],
    checkpoint: str | None = None,
) -> ModelFacts:
    """The facts of a model built from `run`, measured on `corpus` after it had come to `reached`; collective."""
    options = run.model.encoding.model_dump(mode="json")
    return ModelFacts(
        run=run.name,
        purpose=purpose,
        encoding=options.pop("name"),
        encoding_options=options,
        extrapolation=tuple(trick.model_dump(mode="json") for trick in run.extrapolation if checkpoint),
        checkpoint=checkpoint,
        step=reached.step,
        consumed_tokens=reached.consumed_tokens,
        num_parameters=num_parameters(run.model, padded_vocabulary(corpus.vocab_size, groups.tensor_size)),
        train_length=run.training.seq_length,
        seed=run.seed,
        tokenizer_hash=corpus.tokenizer_sha256,
        corpus_fingerprint=corpus.fingerprint,
        precision=run.training.precision,
        attention_backend=backends_in_force(model),
        attention_epsilon=run.model.attention_epsilon,
        tensor_parallel=groups.tensor_size,
        data_parallel=groups.data_size,
        context_parallel=groups.context_size,
        pipeline_parallel=groups.pipeline_size,
        version=version("megatron-mep"),
    )
