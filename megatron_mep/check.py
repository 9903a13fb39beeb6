"""What a run comes to before it is started: the resolved file, the model's size, the layout and the corpus."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from megatron_mep.config.errors import ConfigError
from megatron_mep.data.manifest import MANIFEST, Manifest
from megatron_mep.encodings.base import DistanceBias
from megatron_mep.model.balance import balanced, largest_score_at_unit_rms, tensor_imbalance
from megatron_mep.model.count import flops_per_token, num_parameters, padded_vocabulary
from megatron_mep.model.exchange import attention_backend
from megatron_mep.model.stage import Stage
from megatron_mep.parallel.environment import Environment
from megatron_mep.preflight import evaluation_mistakes, preflight, training_plan, vocabulary_of
from megatron_mep.rules import batches_fit
from megatron_mep.run import RunConfig
from megatron_mep.training.precision import dtype_of


def describe(run: RunConfig, world_size: int | None = None) -> str:
    """The resolved run file, then what follows from it; a `ConfigError` where it fits neither ranks nor corpus.

    The world size is that of the environment, or the smallest that the layout allows where no launcher states one. A
    run whose corpus is not prepared yet is described all the same.
    """
    stated = world_size or Environment.discover(os.environ).world_size
    ranks = stated if stated > 1 or world_size else run.parallel.model
    prepared = (Path(run.data.folder) / MANIFEST).is_file()
    corpus = preflight(run, ranks) if prepared else None
    mistakes = evaluation_mistakes(run, corpus) if corpus else batches_fit(run, ranks)
    if mistakes:
        raise ConfigError(mistakes)
    facts = [
        *_corpus_facts(run, corpus),
        *_size_facts(run),
        *_layout_facts(run, ranks),
        _attention_fact(run),
        *_balance_facts(run),
    ]
    width = max(len(name) for name, _ in facts)
    return "\n".join([run.yaml(), *(f"{name.ljust(width)}  {value}" for name, value in facts)])


def _corpus_facts(run: RunConfig, corpus: Manifest | None) -> Iterator[tuple[str, str]]:
    if corpus is None:
        yield "corpus", f"{run.data.folder} is not prepared yet: run `mep prepare`"
        return
    yield "corpus", f"{run.data.folder}: {corpus.summary}"
    yield "epochs", f"{training_plan(run, corpus).num_epochs:.2f} over the training split"


def _size_facts(run: RunConfig) -> Iterator[tuple[str, str]]:
    vocabulary = vocabulary_of(run)
    if vocabulary is None:
        yield "parameters", "known once `mep prepare` has read the tokenizer"
        return
    padded = padded_vocabulary(vocabulary, run.parallel.tensor)
    yield "vocabulary", f"{vocabulary:,} tokens, padded to {padded:,}"
    yield "parameters", f"{num_parameters(run.model, padded):,}"
    flops = flops_per_token(run.model, padded, run.training.seq_length)
    yield "FLOPs per token", f"{flops:.3g}, forward and backward, causal convention"


def _layout_facts(run: RunConfig, ranks: int) -> Iterator[tuple[str, str]]:
    parallel, training = run.parallel, run.training
    data = parallel.data(ranks)
    micro_batches = training.global_batch_size // (training.micro_batch_size * data)
    tokens = training.steps * training.global_batch_size * training.seq_length
    sequence = ", sequence parallel" if parallel.sequence else ""
    context = f" x context {parallel.context} by {parallel.context_exchange}" if parallel.context > 1 else ""
    pipeline = f" x pipeline {parallel.pipeline}" if parallel.pipeline > 1 else ""
    yield "world size", f"{ranks} = tensor {parallel.tensor}{sequence}{context}{pipeline} x data {data}"
    if context:
        share = training.seq_length // parallel.context
        yield "tokens per rank", f"{share:,} of each sequence's {training.seq_length:,}, in 2 chunks"
    if pipeline:
        yield "pipeline", Stage.of(parallel).told(run.model.num_layers, micro_batches)
    yield "heads per rank", f"{run.model.num_attention_heads // parallel.tensor} of {run.model.num_attention_heads}"
    yield "batch", f"{micro_batches} micro-batches of {training.micro_batch_size} on each data-parallel rank"
    yield "training tokens", f"{tokens:,} in {training.steps:,} steps"
    yield "optimizer", f"AdamW under ZeRO-{training.zero_stage}, {training.precision}"


def _attention_fact(run: RunConfig) -> tuple[str, str]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = dtype_of(run.training.precision)
    backend = attention_backend(run.model, run.model.encoding, run.parallel, dtype, training=True)
    return f"attention on {device}", f"{run.model.encoding.name} in every layer by {backend.name}: {backend.reason}"


def _balance_facts(run: RunConfig) -> Iterator[tuple[str, str]]:
    """Nothing where all ranks work alike that have different heads: tensor ranks, and under ulysses context ranks."""
    model, parallel, epsilon = run.model, run.parallel, run.model.attention_epsilon
    by_context = parallel.context > 1 and parallel.context_exchange == "ulysses"
    parts = parallel.tensor * (parallel.context if by_context else 1)
    if parts == 1 or not epsilon or not isinstance(model.encoding, DistanceBias):
        return
    largest_score = largest_score_at_unit_rms(model.head_size)
    lengths = (run.training.seq_length, run.evaluation.resolved(run.training.seq_length).lengths[-1])

    def imbalance(encoding: DistanceBias) -> dict[int, float]:
        heads = model.num_attention_heads
        return tensor_imbalance(encoding, heads, parts, lengths, largest_score, epsilon)

    found = imbalance(model.encoding)
    if not found:
        return
    told = ", ".join(f"{ratio:.2f} at {length:,} tokens" for length, ratio in found.items())
    told += f" (windows at epsilon {epsilon:g}, taking |scores| <= {largest_score:.3g})"
    other = balanced(model.encoding)
    better = imbalance(other) if other else found
    if max(better.values()) < max(found.values()):
        told += f"; model.encoding.order=balanced gives {', '.join(f'{ratio:.2f}' for ratio in better.values())}"
    yield "tensor x context balance" if by_context else "tensor balance", f"rank work max/mean {told}"
