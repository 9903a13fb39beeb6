"""What must hold between the keys of a run: each rule names the keys it reads, and what to do where it is broken."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.nearest import divisors, nearest
from megatron_mep.encodings.base import LayerSizes, Rotation
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.placement import Embedded
from megatron_mep.encodings.randomized import Randomized
from megatron_mep.extrapolation import extrapolated
from megatron_mep.layout_rules import (
    chunks_divide_the_layers,
    exchange_serves_the_model,
    mixed_heads_are_on_one_rank,
    ranks_divide_the_sequence,
    stages_divide_the_layers,
    stages_keep_their_gradients,
    stages_share_an_encoding,
    tensor_ranks_divide_the_feed_forward,
    tensor_ranks_divide_the_heads,
)
from megatron_mep.training.config import Decaying, WarmupStableDecay

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
        fitting = nearest(model.num_attention_heads, divisors(model.hidden_size))
        yield Mistake("model.num_attention_heads", model.num_attention_heads,
                      f"must divide model.hidden_size={model.hidden_size}", f"try {fitting} heads")  # fmt: skip


def _groups_divide_the_heads(run: "RunConfig") -> Iterator[Mistake]:
    model = run.model
    if model.num_attention_heads % model.groups:
        fitting = divisors(model.num_attention_heads)
        yield Mistake("model.num_query_groups", model.groups,
                      f"must divide model.num_attention_heads={model.num_attention_heads}",
                      f"try {nearest(model.groups, fitting)}")  # fmt: skip


def _micro_batches_fill_the_global_batch(run: "RunConfig") -> Iterator[Mistake]:
    micro, whole = run.training.micro_batch_size, run.training.global_batch_size
    if whole % micro:
        yield Mistake("training.global_batch_size", whole,
                      f"must be a multiple of training.micro_batch_size={micro}",
                      f"try {-(-whole // micro) * micro}")  # fmt: skip


def _schedule_fits_the_steps(run: "RunConfig") -> Iterator[Mistake]:
    schedule, steps = run.training.schedule, run.training.steps
    decay = schedule.decay_steps if isinstance(schedule, WarmupStableDecay) else 0
    if decay > steps:
        yield Mistake("training.schedule.decay_steps", decay, f"must not exceed training.steps={steps}",
                      f"set it to at most {steps}")  # fmt: skip
    elif schedule.warmup_steps + decay > steps:
        beside = f" less the {decay} steps of the decay" if decay else ""
        yield Mistake("training.schedule.warmup_steps", schedule.warmup_steps,
                      f"must not exceed training.steps={steps}{beside}",
                      f"set it to at most {steps - decay}")  # fmt: skip


def _schedule_falls(run: "RunConfig") -> Iterator[Mistake]:
    schedule, highest = run.training.schedule, run.training.optimizer.learning_rate
    if isinstance(schedule, Decaying) and schedule.min_learning_rate > highest:
        yield Mistake("training.schedule.min_learning_rate", schedule.min_learning_rate,
                      f"must not exceed training.optimizer.learning_rate={highest}",
                      f"set it to {highest / 10:g}, a tenth of it")  # fmt: skip


def _spikes_can_be_skipped(run: "RunConfig") -> Iterator[Mistake]:
    spike, steps = run.training.spike, run.training.steps
    if spike.skip and spike.window >= 2 * steps:
        yield Mistake("training.spike.skip", True, f"compares with {-(-spike.window // 2)} losses, half of "
                      f"training.spike.window, but training.steps={steps}",
                      "set training.spike.skip to false, or training.spike.window lower")  # fmt: skip


def _encoding_fits_the_heads(run: "RunConfig") -> Iterator[Mistake]:
    model = run.model
    sizes = LayerSizes(model.num_attention_heads, model.hidden_size, model.head_size)
    yield from (mistake.under("model.encoding") for mistake in model.encoding.mistakes(sizes))


def _encoding_acts(run: "RunConfig") -> Iterator[Mistake]:
    model, name = run.model, run.model.encoding.name
    chosen = list(model.nope_layers)
    beyond = [number for number in chosen if number > model.num_layers]
    if beyond:
        yield Mistake("model.nope_layers", chosen, f"must be layers from 1 to {model.num_layers}",
                      f"leave out {', '.join(map(str, beyond))}")  # fmt: skip
    elif chosen and isinstance(model.encoding, Nope):
        yield Mistake("model.nope_layers", chosen, "means nothing under nope, which acts in no layer",
                      "leave it out, or choose another model.encoding")  # fmt: skip
    elif not model.num_encoded_layers:
        yield Mistake("model.nope_layers", chosen, f"names all layers, so that {name} would act in none",
                      "leave one out, or set model.encoding.name to nope")  # fmt: skip
    elif chosen and isinstance(model.encoding, Carried):
        yield Mistake("model.nope_layers", chosen, f"would end the states that {name} hands from layer to layer",
                      "leave it out, or choose another model.encoding")  # fmt: skip
    elif chosen and isinstance(model.encoding, Embedded):
        yield Mistake("model.nope_layers", chosen, f"cannot keep {name} away, which acts on embeddings",
                      "leave it out, or choose another model.encoding")  # fmt: skip


def _positions_last_for_training(run: "RunConfig") -> Iterator[Mistake]:
    encoding, length = run.model.encoding, run.training.seq_length
    limits = {"num_positions": encoding.num_told_apart} if isinstance(encoding, LearnedAbsolute) else {}
    limits |= {"range": encoding.range} if isinstance(encoding, Randomized) else {}
    for option, limit in limits.items():
        if limit is not None and limit < length:
            yield Mistake(f"model.encoding.{option}", limit, f"must not be less than training.seq_length={length}",
                          f"set it to {length} or more")  # fmt: skip


def _tricks_act_on_the_encoding(run: "RunConfig") -> Iterator[Mistake]:
    try:
        extrapolated(run.model.encoding, run.extrapolation, run.training.seq_length)
    except ConfigError as error:
        yield from error.mistakes
        return
    for index, trick in enumerate(run.extrapolation):
        if run.model.nope_layers and trick.against(Nope()) is None:
            yield Mistake(f"extrapolation[{index}].name", trick.name,
                          f"would not act in the layers {list(run.model.nope_layers)} of model.nope_layers, in which "
                          "queries see all keys as they are", "leave it out")  # fmt: skip


def _documents_are_not_masked(run: "RunConfig") -> Iterator[Mistake]:
    if run.model.document_mask:
        yield Mistake("model.document_mask", True, "is served by no attention backend: sequences are packed, and "
                      "attention sees the documents before", "set model.document_mask to false")  # fmt: skip


def _rotations_turn_pairs(run: "RunConfig") -> Iterator[Mistake]:
    model = run.model
    pairs, odd = divmod(model.head_size, 2)
    if not isinstance(model.encoding, Rotation | Carried) or model.hidden_size % model.num_attention_heads:
        return
    if odd:
        yield Mistake("model.hidden_size", model.hidden_size,
                      f"must give each of the {model.num_attention_heads} heads an even size, of which "
                      f"{model.encoding.name} turns pairs, not {model.head_size}",
                      f"try {2 * (pairs + 1) * model.num_attention_heads}")  # fmt: skip


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
        yield Mistake("training.zero_stage", 3,
                      "cannot hold the fp32 weights that the encoding learns beside bf16 ones",
                      "set training.zero_stage to 2, or training.precision to fp32")  # fmt: skip


RULES = (
    Rule(("model.hidden_size", "model.num_attention_heads"), _heads_divide_the_width),
    Rule(("model.num_query_groups", "model.num_attention_heads"), _groups_divide_the_heads),
    Rule(("model.num_attention_heads", "model.num_query_groups", "parallel.tensor"), tensor_ranks_divide_the_heads),
    Rule(("model.ffn_hidden_size", "model.hidden_size", "model.activation", "parallel.tensor"),
         tensor_ranks_divide_the_feed_forward),
    Rule(("training.seq_length", "parallel.tensor", "parallel.sequence", "parallel.context"),
         ranks_divide_the_sequence),
    Rule(("parallel.pipeline", "model.num_layers"), stages_divide_the_layers),
    Rule(("parallel.pipeline", "parallel.virtual_pipeline", "model.num_layers"), chunks_divide_the_layers),
    Rule(("parallel.pipeline", "training.zero_stage"), stages_keep_their_gradients),
    Rule(("parallel.pipeline", "parallel.virtual_pipeline", "model.nope_layers", "model.encoding", "model.num_layers"),
         stages_share_an_encoding),
    Rule(("parallel", "model.encoding", "model.num_attention_heads", "model.attention_epsilon",
          "model.attention_dropout", "model.attention_backend"), exchange_serves_the_model),
    Rule(("training.micro_batch_size", "training.global_batch_size"), _micro_batches_fill_the_global_batch),
    Rule(("training.schedule", "training.steps"), _schedule_fits_the_steps),
    Rule(("training.schedule", "training.optimizer.learning_rate"), _schedule_falls),
    Rule(("training.spike", "training.steps"), _spikes_can_be_skipped),
    Rule(("model.encoding", "model.num_attention_heads", "model.hidden_size"), _encoding_fits_the_heads),
    Rule(("model.nope_layers", "model.num_layers", "model.encoding"), _encoding_acts),
    Rule(("model.encoding", "training.seq_length"), _positions_last_for_training),
    Rule(("extrapolation", "model.encoding", "model.nope_layers", "training.seq_length"), _tricks_act_on_the_encoding),
    Rule(("model.encoding", "parallel.tensor"), mixed_heads_are_on_one_rank),
    Rule(("model.document_mask",), _documents_are_not_masked),
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
    training, parallel = run.training, run.parallel
    try:
        data = parallel.data(world_size)
    except ConfigError as error:
        return list(error.mistakes)
    step = training.micro_batch_size * data
    told = f"micro_batch_size={training.micro_batch_size} times the {data} data-parallel ranks"
    remedy = ""
    if parallel.virtual_pipeline > 1:
        step *= parallel.pipeline
        told += f" times parallel.pipeline={parallel.pipeline}, by which interleaved stages take micro-batches in turn"
        remedy = ", or set parallel.virtual_pipeline to 1"
    if training.global_batch_size % step:
        return [Mistake("training.global_batch_size", training.global_batch_size, f"must be a multiple of {told}",
                        f"try {-(-training.global_batch_size // step) * step}{remedy}")]  # fmt: skip
    return []


def _overlap(key: str, wrong: str) -> bool:
    """Whether one key is the other, or holds it."""
    return key == wrong or wrong.startswith((f"{key}.", f"{key}[")) or key.startswith(f"{wrong}.")
