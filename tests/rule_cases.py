"""A run that breaks each rule between keys, one that just holds, and how its remedy is followed."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tree = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A run that breaks one rule alone."""

    rule: str
    key: str
    breaks: Tree
    holds: Tree
    """As close to the broken run as holds."""
    remedy: Callable[[str], str]
    """The override that the text of the remedy comes to."""


def sets(key: str) -> Callable[[str], str]:
    """The override that a remedy comes to: the first number in it, for a key."""
    return lambda remedy: f"{key}={re.findall(r'[0-9][0-9.e-]*[0-9]|[0-9]', remedy)[0]}"


def as_told(remedy: str) -> str:
    """The override that `set key to value, ...` comes to."""
    return remedy.removeprefix("set ").partition(",")[0].replace(" to ", "=")


def encoding(name: str, **options: Any) -> Tree:
    return {"encoding": {"name": name, **options}}


def sloped(*slopes: float) -> Tree:
    return encoding("mep", kernels=[{"kernel": "exponential"}, {"kernel": "gaussian", "slopes": list(slopes)}])


SHARED = {"encoding": {"name": "kerple_log", "shared_by_layers": True}, "num_layers": 4}
GROUPS_OF_FOUR = {"num_attention_heads": 12, "hidden_size": 48, "num_query_groups": 4, "ffn_hidden_size": 12 * 7 * 5}
SIX_GROUPS = GROUPS_OF_FOUR | {"num_query_groups": 6}
WSD = {"name": "wsd", "decay_steps": 3}
LEARNED = encoding("mep", kernels=[{"kernel": "log"}])
ULYSSES = {"context": 2, "context_exchange": "ulysses"}
RING = {"context": 2, "context_exchange": "ring"}

# fmt: off
CASES = (
    Case("_heads_divide_the_width", "model.num_attention_heads", {"model": {"num_attention_heads": 5}},
         {"model": {"num_attention_heads": 8}}, sets("model.num_attention_heads")),
    Case("_groups_divide_the_heads", "model.num_query_groups", {"model": {"num_query_groups": 3}},
         {"model": {"num_query_groups": 2}}, sets("model.num_query_groups")),
    Case("tensor_ranks_divide_the_heads", "parallel.tensor",
         {"model": {"ffn_hidden_size": 48}, "parallel": {"tensor": 3}},
         {"model": {"ffn_hidden_size": 48}, "parallel": {"tensor": 4}}, sets("parallel.tensor")),
    Case("tensor_ranks_divide_the_heads", "parallel.tensor",
         {"model": GROUPS_OF_FOUR, "parallel": {"tensor": 3}},
         {"model": GROUPS_OF_FOUR, "parallel": {"tensor": 4}}, sets("parallel.tensor")),
    Case("tensor_ranks_divide_the_heads", "parallel.tensor",
         {"model": SIX_GROUPS, "parallel": {"tensor": 4}},
         {"model": SIX_GROUPS, "parallel": {"tensor": 2}}, sets("parallel.tensor")),
    # 6 is the nearest divisor of the heads, and fits no four groups
    Case("tensor_ranks_divide_the_heads", "parallel.tensor",
         {"model": GROUPS_OF_FOUR, "parallel": {"tensor": 7}},
         {"model": GROUPS_OF_FOUR, "parallel": {"tensor": 4}}, sets("parallel.tensor")),
    Case("tensor_ranks_divide_the_feed_forward", "parallel.tensor",
         {"model": {"ffn_hidden_size": 63}, "parallel": {"tensor": 4}},
         {"model": {"ffn_hidden_size": 60}, "parallel": {"tensor": 4}}, sets("model.ffn_hidden_size")),
    Case("ranks_divide_the_sequence", "training.seq_length",
         {"training": {"seq_length": 7}, "parallel": {"tensor": 2, "sequence": True}},
         {"training": {"seq_length": 7}, "parallel": {"tensor": 2}}, sets("training.seq_length")),
    Case("ranks_divide_the_sequence", "training.seq_length",
         {"training": {"seq_length": 12}, "parallel": {"context": 4}},
         {"training": {"seq_length": 12}, "parallel": {"context": 3}}, sets("training.seq_length")),
    # the share of a context rank is divided over its tensor ranks
    Case("ranks_divide_the_sequence", "training.seq_length",
         {"training": {"seq_length": 12}, "parallel": {"context": 2, "tensor": 4, "sequence": True}},
         {"training": {"seq_length": 12}, "parallel": {"context": 2, "tensor": 2, "sequence": True}},
         sets("training.seq_length")),
    Case("stages_divide_the_layers", "parallel.pipeline",
         {"model": {"num_layers": 6}, "parallel": {"pipeline": 4}},
         {"model": {"num_layers": 6}, "parallel": {"pipeline": 3}}, sets("parallel.pipeline")),
    Case("chunks_divide_the_layers", "parallel.virtual_pipeline",
         {"model": {"num_layers": 12}, "parallel": {"pipeline": 2, "virtual_pipeline": 4}},
         {"model": {"num_layers": 12}, "parallel": {"pipeline": 2, "virtual_pipeline": 3}},
         sets("parallel.virtual_pipeline")),
    *(Case("stages_keep_their_gradients", "training.zero_stage",
           {"training": {"zero_stage": stage, "precision": "fp32"}, "model": {"num_layers": 2},
            "parallel": {"pipeline": 2}},
           {"training": {"zero_stage": stage, "precision": "fp32"}, "model": {"num_layers": 2}}, as_told)
      for stage in (0, 2, 3)),
    Case("stages_share_an_encoding", "model.nope_layers",
         {"model": SHARED | {"nope_layers": [1, 2]}, "parallel": {"pipeline": 2}},
         {"model": SHARED | {"nope_layers": [1, 3]}, "parallel": {"pipeline": 2}},
         lambda remedy: "parallel.pipeline=1" if "parallel.pipeline to 1" in remedy else ""),
    # interleaved, each stage has every second layer
    Case("stages_share_an_encoding", "model.nope_layers",
         {"model": SHARED | {"nope_layers": [1, 3]}, "parallel": {"pipeline": 2, "virtual_pipeline": 2}},
         {"model": SHARED | {"nope_layers": [1, 2]}, "parallel": {"pipeline": 2, "virtual_pipeline": 2}},
         lambda remedy: "model.encoding.shared_by_layers=false" if "shared_by_layers to false" in remedy else ""),
    Case("exchange_serves_the_model", "parallel.context",
         {"parallel": ULYSSES | {"tensor": 2, "context": 4}}, {"parallel": ULYSSES | {"tensor": 2}}, as_told),
    Case("exchange_serves_the_model", "parallel.context_exchange",
         {"parallel": ULYSSES, "model": encoding("tests.encodings.examples:Dape")},
         {"parallel": ULYSSES, "model": encoding("tests.encodings.examples:Cope")}, as_told),
    Case("exchange_serves_the_model", "parallel.context_exchange",
         {"parallel": RING, "model": encoding("fox")},
         {"parallel": RING, "model": encoding("fire", threshold=8)}, as_told),
    Case("exchange_serves_the_model", "model.attention_epsilon",
         {"parallel": RING, "model": {"attention_epsilon": 1e-6}},
         {"parallel": ULYSSES, "model": {"attention_epsilon": 1e-6}}, as_told),
    Case("exchange_serves_the_model", "model.attention_dropout",
         {"parallel": RING, "model": encoding("rope") | {"attention_dropout": 0.1}},
         {"parallel": ULYSSES, "model": encoding("rope") | {"attention_dropout": 0.1}}, as_told),
    Case("exchange_serves_the_model", "model.attention_backend",
         {"parallel": RING, "model": {"attention_backend": "reference"}},
         {"parallel": ULYSSES, "model": {"attention_backend": "reference"}}, as_told),
    Case("_micro_batches_fill_the_global_batch", "training.global_batch_size",
         {"training": {"micro_batch_size": 4, "global_batch_size": 6}},
         {"training": {"micro_batch_size": 3, "global_batch_size": 6}}, sets("training.global_batch_size")),
    Case("_schedule_fits_the_steps", "training.schedule.warmup_steps",
         {"training": {"schedule": {"name": "cosine", "warmup_steps": 5}}},
         {"training": {"schedule": {"name": "cosine", "warmup_steps": 4}}},
         sets("training.schedule.warmup_steps")),
    Case("_schedule_fits_the_steps", "training.schedule.warmup_steps",
         {"training": {"schedule": WSD | {"warmup_steps": 2}}},
         {"training": {"schedule": WSD | {"warmup_steps": 1}}}, sets("training.schedule.warmup_steps")),
    Case("_schedule_fits_the_steps", "training.schedule.decay_steps",
         {"training": {"schedule": WSD | {"decay_steps": 5}}},
         {"training": {"schedule": WSD | {"decay_steps": 4}}}, sets("training.schedule.decay_steps")),
    Case("_schedule_falls", "training.schedule.min_learning_rate",
         {"training": {"schedule": {"name": "linear", "min_learning_rate": 0.002}}},
         {"training": {"schedule": {"name": "linear", "min_learning_rate": 0.001}}},
         sets("training.schedule.min_learning_rate")),
    Case("_spikes_can_be_skipped", "training.spike.skip",
         {"training": {"steps": 10, "spike": {"skip": True, "window": 20}}},
         {"training": {"steps": 10, "spike": {"skip": True, "window": 19}}}, as_told),
    Case("_encoding_fits_the_heads", "model.encoding.kernels[1].slopes",
         {"model": sloped(0.5, 0.25)}, {"model": sloped(0.5, 0.3, 0.2, 0.1)},
         lambda remedy: "model.encoding.kernels=[{kernel: gaussian}]" if "leave them out" in remedy else ""),
    Case("_encoding_acts", "model.nope_layers", {"model": {"num_layers": 2, "nope_layers": [1, 3]}},
         {"model": {"num_layers": 2, "nope_layers": [1]}},
         lambda remedy: "model.nope_layers=[1]" if remedy == "leave out 3" else ""),
    Case("_encoding_acts", "model.nope_layers", {"model": {"num_layers": 2, "nope_layers": [2, 1]}},
         {"model": {"num_layers": 2, "nope_layers": [2]}},
         lambda remedy: "model.nope_layers=[2]" if "leave one out" in remedy else ""),
    Case("_encoding_acts", "model.nope_layers", {"model": encoding("nope") | {"nope_layers": [1]}},
         {"model": encoding("nope")}, lambda remedy: "model.nope_layers=[]" if "leave it out" in remedy else ""),
    Case("_encoding_acts", "model.nope_layers",
         {"model": encoding("tests.encodings.examples:Table") | {"num_layers": 2, "nope_layers": [1]}},
         {"model": encoding("tests.encodings.examples:Table")},
         lambda remedy: "model.nope_layers=[]" if "leave it out" in remedy else ""),
    Case("_positions_last_for_training", "model.encoding.num_positions",
         {"model": encoding("learned_absolute", num_positions=7)},
         {"model": encoding("learned_absolute", num_positions=8)}, sets("model.encoding.num_positions")),
    Case("_positions_last_for_training", "model.encoding.range",
         {"model": encoding("randomized_rotation", range=7, train_length=4)},
         {"model": encoding("randomized_rotation", range=8, train_length=8)}, sets("model.encoding.range")),
    Case("_tricks_act_on_the_encoding", "extrapolation[0].name",
         {"model": encoding("rope") | {"num_layers": 2, "nope_layers": [1]}, "extrapolation": [{"name": "log_n"}]},
         {"model": encoding("rope") | {"num_layers": 2, "nope_layers": [1]},
          "extrapolation": [{"name": "yarn", "factor": 2}]},
         lambda remedy: "extrapolation=[]" if "leave it out" in remedy else ""),
    Case("_tricks_act_on_the_encoding", "extrapolation[0].name",
         {"model": encoding("alibi"), "extrapolation": [{"name": "interpolation", "factor": 2}]},
         {"model": encoding("rope"), "extrapolation": [{"name": "interpolation", "factor": 2}]},
         lambda remedy: "extrapolation=[]" if "leave it out" in remedy else ""),
    Case("mixed_heads_are_on_one_rank", "parallel.tensor",
         {"model": encoding("tests.encodings.examples:Dape"), "parallel": {"tensor": 2}},
         {"model": encoding("tests.encodings.examples:Cope"), "parallel": {"tensor": 2}}, sets("parallel.tensor")),
    Case("mixed_heads_are_on_one_rank", "parallel.tensor", {"model": encoding("tape"), "parallel": {"tensor": 2}},
         {"model": encoding("tape")}, sets("parallel.tensor")),
    Case("_encoding_acts", "model.nope_layers", {"model": encoding("tape") | {"num_layers": 2, "nope_layers": [1]}},
         {"model": encoding("tape")}, lambda remedy: "model.nope_layers=[]" if "leave it out" in remedy else ""),
    Case("_rotations_turn_pairs", "model.hidden_size", {"model": encoding("tape") | {"hidden_size": 12}},
         {"model": encoding("tape") | {"hidden_size": 24}}, sets("model.hidden_size")),
    Case("_documents_are_not_masked", "model.document_mask", {"model": {"document_mask": True}},
         {"model": {"document_mask": False}}, as_told),
    Case("_rotations_turn_pairs", "model.hidden_size", {"model": encoding("rope") | {"hidden_size": 12}},
         {"model": encoding("alibi") | {"hidden_size": 12}}, sets("model.hidden_size")),
    Case("_encoding_fits_the_heads", "model.encoding.fraction",
         {"model": encoding("rope", fraction=0.2) | {"hidden_size": 16}},
         {"model": encoding("rope", fraction=0.2) | {"hidden_size": 32}}, sets("model.encoding.fraction")),
    Case("_bf16_has_master_weights", "training.zero_stage",
         {"training": {"precision": "bf16", "zero_stage": 0}},
         {"training": {"precision": "fp32", "zero_stage": 0}}, as_told),
    Case("_zero_3_keeps_one_type", "training.zero_stage",
         {"training": {"precision": "bf16", "zero_stage": 3}, "model": LEARNED},
         {"training": {"precision": "bf16", "zero_stage": 3}}, as_told),
    Case("_evaluation_fits_the_training_length", "evaluation.tokens", {"evaluation": {"tokens": 1000}},
         {"evaluation": {"tokens": 1024}}, sets("evaluation.tokens")),
    Case("_evaluation_fits_the_training_length", "validation.tokens", {"validation": {"tokens": 100}},
         {"validation": {"tokens": 104}}, sets("validation.tokens")),
)
# fmt: on
