"""A plan as a person reads it, and as a program does."""

from collections.abc import Iterator
from typing import Any

from megatron_mep.plan.plan import Plan

Fact = tuple[str, str]


def table(plan: Plan) -> str:
    """Lines of facts under headings."""
    sections = {
        f"{plan.run}: {plan.num_weights:,} weights": _layout(plan),
        f"Memory of one rank{_of_stage(plan, plan.share.stage.rank, 'the fullest')}": _memory(plan),
        f"Sent by one rank in a step{_of_stage(plan, plan.traffic_stage, 'which sends the most')}": _traffic(plan),
        "Work and time": _work(plan),
    }
    told = {title: list(facts) for title, facts in sections.items()}
    width = max(len(name) for facts in told.values() for name, _ in facts)
    lines = []
    for title, facts in told.items():
        lines += [title, *(f"  {name.ljust(width)}  {value}" for name, value in facts), ""]
    return "\n".join(lines[:-1])


def as_json(plan: Plan) -> dict[str, Any]:
    """The same in bytes, seconds and operations."""
    share, memory, activations = plan.share, plan.memory, plan.memory.activations
    return {
        "run": plan.run,
        "world_size": share.world_size,
        "tensor": share.tensor,
        "sequence": share.sequence,
        "context": share.context,
        "context_exchange": share.exchange,
        "pipeline": share.stage.size,
        "virtual_pipeline": share.stage.num_chunks,
        "bubble": plan.bubble,
        "data": share.data,
        "micro_batches": share.micro_batches,
        "zero_stage": share.training.zero_stage,
        "precision": share.training.precision,
        "recompute": share.training.recompute,
        "num_weights": plan.num_weights,
        "pipeline_rank": share.stage.rank,
        "num_weights_of_rank": share.num_weights,
        "attention_backend": plan.attention.name,
        "memory_bytes": {
            "weights": memory.weights,
            "gathered_weights": memory.gathered,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "bucket": memory.bucket,
            "activations": activations.peak,
            "of_which_encoding_bias": activations.bias,
            "pass_peak": memory.pass_peak,
            "step_peak": memory.step_peak,
            "peak": memory.peak,
            "peak_of_stages": list(plan.stage_peaks),
            "device": plan.accelerator.memory_gb and int(plan.accelerator.memory_gb * 1e9),
        },
        "cache_bytes": {str(length): size for length, size in plan.caches.items()},
        "traffic_pipeline_rank": plan.traffic_stage,
        "traffic": [each._asdict() for each in plan.traffic],
        "flops_per_token_causal": plan.causal_flops,
        "flops_per_token_non_causal": plan.all_scores_flops,
        "tokens_per_step": plan.tokens_per_step,
        "accelerator": plan.accelerator.title,
        "peak_tflops": plan.peak_tflops,
        "peak_fraction": plan.peak_fraction,
        "step_s": plan.step_s,
    }


def _of_stage(plan: Plan, stage: int, why: str) -> str:
    num_stages = plan.share.stage.size
    return f" (of stage {stage + 1} of {num_stages}, {why})" if num_stages > 1 else ""


def _layout(plan: Plan) -> Iterator[Fact]:
    share, training = plan.share, plan.share.training
    axes = f"tensor {share.tensor}{', sequence parallel' if share.sequence else ''}"
    if share.context > 1:
        axes += f" x context {share.context} by {share.exchange}"
    if share.stage.size > 1:
        axes += f" x pipeline {share.stage.size}"
    yield "world size", f"{share.world_size} = {axes} x data {share.data}"
    if share.stage.size > 1:
        yield "pipeline", share.stage.told(share.model.num_layers, share.micro_batches)
    yield "weights of a rank", f"{share.num_weights:,}"
    yield (
        "batch",
        f"{share.micro_batches} micro-batches of {training.micro_batch_size} x {training.seq_length:,} tokens",
    )
    yield "precision", f"{training.precision}, ZeRO-{training.zero_stage}, recompute {training.recompute}"
    yield "attention", f"{share.model.encoding.name} by {plan.attention.name}"


def _memory(plan: Plan) -> Iterator[Fact]:
    memory, activations = plan.memory, plan.memory.activations
    yield "weights", _size(memory.weights)
    if memory.gathered:
        yield "weights of other ranks", f"{_size(memory.gathered)}, while it computes"
    yield "gradients", f"{_size(memory.gradients)}, in fp32, and {_size(memory.bucket)} where they are reduced"
    yield "optimizer", _size(memory.optimizer)
    flight = f" for {activations.in_flight:g} micro-batches in flight" if plan.share.stage.size > 1 else ""
    told = f"{_size(activations.peak)}{flight}"
    yield "activations", f"{told}, of which the encoding's bias {_size(activations.bias)}"
    yield "peak of the passes", _size(memory.pass_peak)
    yield "peak of the update", _size(memory.step_peak)
    if len(plan.stage_peaks) > 1:
        yield "peak of each stage", ", ".join(map(_size, plan.stage_peaks))
    apart = "; libraries, communication and fragments of the allocator are apart"
    if plan.fits is None:
        yield "peak", _size(memory.peak) + apart
    else:
        yield "peak", f"{_size(memory.peak)}, {_verdict(plan)}{apart}"
    for length, size in plan.caches.items():
        yield f"cache of {length:,} tokens", f"{_size(size)} for each sequence that is generated"


def _verdict(plan: Plan) -> str:
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    return f"{verdict} the {plan.accelerator.memory_gb:g} GB of {plan.accelerator.title}"


def _traffic(plan: Plan) -> Iterator[Fact]:
    for each in plan.traffic:
        name = f"{each.what}, {each.over}"
        yield name, f"{_size(each.sent)} in {each.calls:,} tensors by {each.operation}"
    if not plan.traffic:
        yield "nothing", "it is alone"


def _work(plan: Plan) -> Iterator[Fact]:
    yield "FLOPs per token, causal", f"{plan.causal_flops:.4g}: scores that the mask leaves"
    yield "FLOPs per token, non-causal", f"{plan.all_scores_flops:.4g}: all scores, as PaLM counts"
    yield "tokens per step", f"{plan.tokens_per_step:,}"
    if plan.step_s is None:
        yield "step", f"state logging.peak_tflops: no maker states the peak of a {plan.accelerator.title}"
        return
    of_peak = f"{plan.peak_fraction:.0%} of {plan.peak_tflops:g} TFLOP/s ({plan.peak_source})"
    yield "step", f"{plan.step_s:.3g} s, an estimate at {of_peak}"
    yield "tokens/s", f"{plan.tokens_per_step / plan.step_s:,.0f}"
    days = plan.step_s * plan.share.training.steps / 86400
    yield "whole run", f"{days:.3g} days for {plan.share.training.steps:,} steps"


def _size(number: float) -> str:
    """Bytes in the unit that suits them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number:.0f} bytes"
