"""What must hold between the keys of a run: each rule names the keys it reads and says what to do where it is broken."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import Rotation
from megatron_mep.training.config import WarmupStableDecay

if TYPE_CHECKING:
    from megatron_mep.run import RunConfig


@dataclass(frozen=True)
class Rule:
    """A rule between keys."""

    reads: tuple[str, ...]
    """The keys whose values it compares."""
    broken: Callable[["RunConfig"], Iterator[Mistake]]
    """The mistakes that it finds."""


def _heads_divide_the_width(run: "RunConfig") -> Iterator[Mistake]:
    model = run.model
    if model.hidden_size % model.num_attention_heads:
        nearest = _nearest_divisor(model.hidden_size, model.num_attention_heads)
        yield Mistake("model.num_attention_heads", model.num_attention_heads,
                      f"must divide model.hidden_size={model.hidden_size}", f"try {nearest} heads")  # fmt: skip


def _groups_divide_the_heads(run: "RunConfig") -> Iterator[Mistake]:
    model = run.model
    if model.num_attention_heads % model.groups:
        nearest = _nearest_divisor(model.num_attention_heads, model.groups)
        yield Mistake("model.num_query_groups", model.groups,
                      f"must divide model.num_attention_heads={model.num_attention_heads}", f"try {nearest}")  # fmt: skip


def _tensor_ranks_divide_the_heads(run: "RunConfig") -> Iterator[Mistake]:
    heads, groups, tensor = run.model.num_attention_heads, run.model.groups, run.parallel.tensor
    if heads % tensor:
        yield Mistake("parallel.tensor", tensor, f"must divide model.num_attention_heads={heads}",
                      f"try {_nearest_divisor(heads, tensor)}")  # fmt: skip
    elif groups % tensor and tensor % groups:
        yield Mistake("parallel.tensor", tensor,
                      f"must divide model.num_query_groups={groups}, or be a multiple of it",
                      f"try {_nearest_divisor(groups, tensor)}")  # fmt: skip


def _tensor_ranks_divide_the_feed_forward(run: "RunConfig") -> Iterator[Mistake]:
    ffn, tensor = run.model.ffn_size, run.parallel.tensor
    if ffn % tensor:
        yield Mistake("parallel.tensor", tensor, f"must divide the feed-forward width {ffn}",
                      f"set model.ffn_hidden_size to {-(-ffn // tensor) * tensor}")  # fmt: skip


def _sequence_parallel_splits_the_sequence(run: "RunConfig") -> Iterator[Mistake]:
    length, tensor = run.training.seq_length, run.parallel.tensor
    if run.parallel.sequence and length % tensor:
        yield Mistake("training.seq_length", length, f"must be a multiple of parallel.tensor={tensor} under "
                      "parallel.sequence", f"try {-(-length // tensor) * tensor}")  # fmt: skip


def _micro_batches_fill_the_global_batch(run: "RunConfig") -> Iterator[Mistake]:
    micro, whole = run.training.micro_batch_size, run.training.global_batch_size
    if whole % micro:
        yield Mistake("training.global_batch_size", whole,
                      f"must be a multiple of training.micro_batch_size={micro}", f"try {-(-whole // micro) * micro}")  # fmt: skip


def _schedule_fits_the_steps(run: "RunConfig") -> Iterator[Mistake]:
    schedule, steps = run.training.schedule, run.training.steps
    decay = schedule.decay_steps if isinstance(schedule, WarmupStableDecay) else 0
    if schedule.warmup_steps + decay > steps:
        yield Mistake("training.schedule.warmup_steps", schedule.warmup_steps,
                      f"must leave training.steps={steps} room for warm-up and decay ({decay} steps)",
                      f"set it to at most {max(steps - decay, 0)}")  # fmt: skip


def _encoding_fits_the_heads(run: "RunConfig") -> Iterator[Mistake]:
    model = run.model
    try:
        model.encoding.weights(model.num_attention_heads, torch.Generator())
    except ConfigError as error:
        yield from (replace(mistake, key=f"model.encoding.{mistake.key}") for mistake in error.mistakes)


def _rotations_turn_pairs(run: "RunConfig") -> Iterator[Mistake]:
    model = run.model
    if isinstance(model.encoding, Rotation) and model.head_size % 2:
        yield Mistake("model.encoding.name", model.encoding.name,
                      f"turns pairs of dimensions, and a head has {model.head_size} of them",
                      "choose hidden_size and num_attention_heads whose quotient is even")  # fmt: skip


def _bf16_has_master_weights(run: "RunConfig") -> Iterator[Mistake]:
    if run.training.precision == "bf16" and run.training.zero_stage == 0:
        yield Mistake("training.zero_stage", 0, "keeps no fp32 master weights, which training.precision=bf16 needs",
                      "set training.zero_stage to 1, also on one rank")  # fmt: skip


def _evaluation_fits_the_training_length(run: "RunConfig") -> Iterator[Mistake]:
    for section in (run.evaluation.resolved, run.validation.tokens_for):
        try:
            section(run.training.seq_length)
        except ConfigError as error:
            yield from error.mistakes


def _zero_3_keeps_one_type(run: "RunConfig") -> Iterator[Mistake]:
    training, encoding = run.training, run.model.encoding
    if training.zero_stage == 3 and training.precision == "bf16" and encoding.learned:
        yield Mistake("training.zero_stage", 3, "cannot hold the fp32 weights that the encoding learns beside bf16 ones",
                      "set training.zero_stage to 2, or training.precision to fp32")  # fmt: skip


RULES = (
    Rule(("model.hidden_size", "model.num_attention_heads"), _heads_divide_the_width),
    Rule(("model.num_query_groups", "model.num_attention_heads"), _groups_divide_the_heads),
    Rule(("model.num_attention_heads", "model.num_query_groups", "parallel.tensor"), _tensor_ranks_divide_the_heads),
    Rule(("model.ffn_hidden_size", "model.hidden_size", "model.activation", "parallel.tensor"),
         _tensor_ranks_divide_the_feed_forward),
    Rule(("training.seq_length", "parallel.tensor", "parallel.sequence"), _sequence_parallel_splits_the_sequence),
    Rule(("training.micro_batch_size", "training.global_batch_size"), _micro_batches_fill_the_global_batch),
    Rule(("training.schedule", "training.steps"), _schedule_fits_the_steps),
    Rule(("model.encoding", "model.num_attention_heads"), _encoding_fits_the_heads),
    Rule(("model.encoding", "model.hidden_size", "model.num_attention_heads"), _rotations_turn_pairs),
    Rule(("evaluation", "validation", "training.seq_length"), _evaluation_fits_the_training_length),
    Rule(("training.precision", "training.zero_stage"), _bf16_has_master_weights),
    Rule(("training.precision", "training.zero_stage", "model.encoding"), _zero_3_keeps_one_type),
)  # fmt: skip


def broken_rules(run: "RunConfig", wrong_keys: tuple[str, ...] = ()) -> list[Mistake]:
    """The mistakes of every rule that reads no wrong key."""
    return [
        mistake
        for rule in RULES
        if not any(_overlap(key, wrong) for key in rule.reads for wrong in wrong_keys)
        for mistake in rule.broken(run)
    ]


def batches_fit(run: "RunConfig", world_size: int) -> list[Mistake]:
    """The mistakes between a run and the number of ranks it was started on."""
    tensor, training = run.parallel.tensor, run.training
    if world_size % tensor:
        return [Mistake("parallel.tensor", tensor, f"must divide the world size {world_size}",
                        f"start a multiple of {tensor} ranks")]  # fmt: skip
    data = world_size // tensor
    if training.global_batch_size % (training.micro_batch_size * data):
        step = training.micro_batch_size * data
        return [Mistake("training.global_batch_size", training.global_batch_size,
                        f"must be a multiple of micro_batch_size={training.micro_batch_size} times the {data} "
                        "data-parallel ranks", f"try {-(-training.global_batch_size // step) * step}")]  # fmt: skip
    return []


def _overlap(key: str, wrong: str) -> bool:
    """Whether one key is the other, or holds it."""
    return key == wrong or wrong.startswith((f"{key}.", f"{key}[")) or key.startswith(f"{wrong}.")


def _nearest_divisor(whole: int, wanted: int) -> int:
    return min((n for n in range(1, whole + 1) if whole % n == 0), key=lambda n: (abs(n - wanted), n))
