"""A plan's memory against what torch allocates while a model of that plan trains."""

from functools import partial
from typing import Any

import pytest

from megatron_mep.model.gpt import build_model
from megatron_mep.plan import memory
from megatron_mep.plan.plan import Plan, plan_of
from megatron_mep.run import RunConfig, run_of
from megatron_mep.training import engine
from megatron_mep.training.engine import build_engine
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.step import micro_batch_starts, train_step
from tests.support.distributed import joined, run
from tests.support.memory import peak_bytes, saved_bytes
from tests.support.runs import Tree, run_tree
from tests.support.tiny import samples

VOCABULARY = 384
LENGTH = 64
WITHIN = 0.15
"""What a plan promises of the peak."""
SAVED_WITHIN = 0.02
"""What saved activations may be off by: the few numbers of each token or head that are not counted."""

ROPE, FIRE, NOPE = ({"encoding": {"name": name}} for name in ("rope", "fire", "nope"))
EXCHANGES: tuple[Tree, ...] = tuple(
    {"context": 2, "context_exchange": exchange} for exchange in ("all_gather", "ulysses", "ring")
)
OTHER_LAYERS = {"activation": "gelu", "norm": "layernorm", "linear_bias": True, "hidden_dropout": 0.1}


def run_with(model: Tree, training: Tree, parallel: Tree) -> RunConfig:
    tree = run_tree(
        model={"num_layers": 3, "hidden_size": 64, "num_attention_heads": 4, **model},
        training={"seq_length": LENGTH, "micro_batch_size": 2, "global_batch_size": 4, **training},
        data={"folder": "nowhere", "tokenizer": {"kind": "train", "vocab_size": VOCABULARY}},
        parallel=parallel,
    )
    return run_of(tree)


def planned(run: RunConfig, world_size: int) -> Plan:
    return plan_of(run, world_size, "cpu")


def near(told: int, measured: int, within: float, what: Any) -> None:
    assert abs(told - measured) <= within * measured, f"{what}: {told:,} told, {measured:,} measured"


SAVED: tuple[tuple[Tree, Tree, Tree], ...] = (
    ({}, {}, {}),
    ({}, {"precision": "bf16"}, {}),
    ({"attention_backend": "toeplitz"}, {}, {}),
    ({"attention_backend": "reference"}, {}, {}),
    (ROPE, {}, {}),
    (ROPE, {"precision": "bf16"}, {}),
    (FIRE, {}, {}),
    (FIRE, {"precision": "bf16"}, {}),
    (OTHER_LAYERS | NOPE, {}, {}),
    (OTHER_LAYERS | NOPE, {"precision": "bf16"}, {}),
    ({"num_query_groups": 2}, {}, {}),
    ({"num_query_groups": 2, "qk_norm": True}, {}, {}),
    ({"qk_norm": True}, {"precision": "bf16"}, {}),
    ({"nope_layers": [2]}, {}, {}),
    ({}, {"recompute": "selective"}, {}),
    (FIRE, {"recompute": "selective"}, {}),
    ({}, {"recompute": "full"}, {}),
    ({}, {}, {"tensor": 2}),
    (ROPE, {}, {"tensor": 2, "sequence": True}),
)


IN_CONTEXT: tuple[tuple[Tree, Tree], ...] = (
    ({}, {}),
    ({}, {"precision": "bf16"}),
    (ROPE, {}),
    (ROPE, {"precision": "bf16"}),
    ({"num_query_groups": 2}, {}),
    (ROPE | {"num_query_groups": 2}, {}),
    (NOPE | {"num_query_groups": 1}, {}),
    ({}, {"recompute": "selective"}),
    ({}, {"recompute": "full"}),
)


@pytest.mark.parametrize("tensor", [1, 2])
def test_saved_activations_are_those_of_the_layers(tensor: int):
    cases = [case for case in SAVED if case[2].get("tensor", 1) == tensor]
    for sequence in (False, True):
        chosen = [case for case in cases if case[2].get("sequence", False) == sequence]
        if chosen:
            run(_saved, tensor, chosen)


@pytest.mark.parametrize("parallel", EXCHANGES, ids=str)
def test_saved_activations_are_those_of_an_exchange(parallel: Tree):
    run(_saved, 2, [(*case, parallel) for case in IN_CONTEXT])


@pytest.mark.parametrize("parallel", EXCHANGES[:2], ids=str)
def test_saved_activations_of_chunks_are_those_of_an_exchange(parallel: Tree):
    run(_saved, 2, [(FIRE, {"precision": precision}, parallel) for precision in ("fp32", "bf16")])


def _saved(cases: list[tuple[Tree, Tree, Tree]]) -> None:
    joined(**cases[0][2])
    for case in cases:
        told = run_with(*case)
        dtype = dtype_of(told.training.precision)
        model = build_model(told.model, told.parallel, VOCABULARY, 0, dtype, told.training.recompute).to(dtype)
        tokens = samples(0, 2, LENGTH)
        measured = saved_bytes(partial(model, tokens[:, :-1], None, None, labels=tokens[:, 1:]), model)
        activations = planned(told, told.parallel.model).memory.activations
        logits = 4 * 2 * LENGTH * VOCABULARY // told.parallel.model
        near(activations.kept + logits, measured, SAVED_WITHIN, case)


TRAINED: tuple[tuple[Tree, Tree, int], ...] = (
    *(({}, {"zero_stage": stage}, 1) for stage in (0, 1, 2, 3)),
    *(({}, {"zero_stage": stage, "precision": "bf16"}, 1) for stage in (1, 2, 3)),
    (ROPE, {"recompute": "full"}, 1),
    (FIRE, {"recompute": "selective"}, 1),
    ({"num_layers": 2}, {"zero_stage": 1, "seq_length": 256}, 1),
    *(({}, {"zero_stage": stage, "precision": "bf16"}, 2) for stage in (1, 2, 3)),
)


@pytest.mark.parametrize(("model", "training", "ranks"), TRAINED, ids=str)
def test_the_peak_of_training_is_near(model: Tree, training: Tree, ranks: int):
    run(_trained, ranks, model, training, {})


DIVIDED: tuple[tuple[Tree, Tree, Tree], ...] = (
    *(({}, {}, exchange) for exchange in EXCHANGES),
    *(({"num_layers": 2}, {"seq_length": 512, "recompute": "selective"}, exchange) for exchange in EXCHANGES),
    (ROPE, {"precision": "bf16", "zero_stage": 2}, EXCHANGES[0]),
    ({}, {"zero_stage": 3}, EXCHANGES[2]),
    ({}, {}, {"tensor": 2, "sequence": True} | EXCHANGES[0]),
    ({}, {}, {"tensor": 2} | EXCHANGES[2]),
    ({"num_layers": 4}, {"global_batch_size": 8}, {"pipeline": 2}),
    ({"num_layers": 4}, {"seq_length": 256, "global_batch_size": 8}, {"pipeline": 2}),
    ({"num_layers": 4}, {"seq_length": 256, "global_batch_size": 8}, {"pipeline": 2, "virtual_pipeline": 2}),
)


@pytest.mark.parametrize(("model", "training", "parallel"), DIVIDED, ids=str)
def test_the_peak_of_a_divided_model_is_near(model: Tree, training: Tree, parallel: Tree):
    ranks = run_with(model, training, parallel).parallel.model
    run(_trained, ranks, model, training, parallel)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_that_fill_many_buckets(stage: int, precision: str, monkeypatch: pytest.MonkeyPatch):
    for module in (engine, memory):
        monkeypatch.setattr(module, "LARGEST_BUCKET", 60_000)
    run(_trained, 1, {"num_layers": 6}, {"zero_stage": stage, "precision": precision}, {})


def _trained(model: Tree, training: Tree, parallel: Tree) -> None:
    groups = joined(**parallel)
    told = run_with(model, training, parallel)
    measured = peak_bytes(partial(_train, told, groups))
    peak = planned(told, groups.world_size).stage_peaks[groups.pipeline_rank]
    near(peak, measured, WITHIN, (model, training, parallel, groups.rank))


def _train(told: RunConfig, groups: Any) -> None:
    training = told.training
    model = build_model(told.model, told.parallel, VOCABULARY, 0, dtype_of(training.precision), training.recompute)
    trained = build_engine(model, training, groups)
    size = training.micro_batch_size
    # in its second step ZeRO 3 knows what it will need, and fetches it ahead
    for step in (1, 2):
        starts = micro_batch_starts(step, training, groups)
        train_step(trained, lambda first: samples(first, size, training.seq_length), starts, groups)
