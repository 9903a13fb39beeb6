"""A plan's traffic against the collectives that a step calls."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatron_mep.model.gpt import build_model
from megatron_mep.plan.communication import communication_of
from megatron_mep.plan.plan import plan_of
from megatron_mep.training.engine import build_engine
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.step import micro_batch_starts, train_step
from tests.plan.test_memory import LENGTH, VOCABULARY, run_with
from tests.support.distributed import joined, run
from tests.support.runs import Tree
from tests.support.tiny import samples

OPERATIONS = {"allreduce_": "all-reduce", "_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter"}
NORMS = 0.01
"""Share of a payload that gradients of norms and norms of gradients come to, which are not counted."""

CASES: tuple[tuple[Tree, Tree], ...] = (
    ({"zero_stage": 0}, {}),
    ({"zero_stage": 1}, {}),
    ({"zero_stage": 1, "precision": "bf16"}, {}),
    ({"zero_stage": 2, "global_batch_size": 8}, {}),
    ({}, {"tensor": 2}),
    ({"recompute": "full"}, {"tensor": 2}),
    ({}, {"tensor": 2, "sequence": True}),
    ({"recompute": "full"}, {"tensor": 2, "sequence": True}),
)


class Collectives(TorchDispatchMode):
    """Sums the bytes of whole tensors by the operation that sends them."""

    def __init__(self) -> None:
        super().__init__()
        self.payload: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            name = OPERATIONS[function._schema.name.split("::")[1]]
            self.payload[name] += max(each.nbytes for each in tree_leaves(args) if isinstance(each, Tensor))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("training", "parallel"), CASES, ids=str)
def test_a_step_sends_what_is_told(training: Tree, parallel: Tree):
    run(_sends, 2, training, parallel)


def _sends(training: Tree, parallel: Tree) -> None:
    groups = joined(**parallel)
    told = run_with({}, training, parallel)
    dtype = dtype_of(told.training.precision)
    model = build_model(told.model, told.parallel, VOCABULARY, 0, dtype, told.training.recompute)
    engine = build_engine(model, told.training, groups)
    starts = micro_batch_starts(1, told.training, groups)
    with Collectives() as collectives:
        train_step(engine, lambda first: samples(first, 2, LENGTH), starts, torch.device("cpu"))
    payload: Counter[str] = Counter()
    for each in communication_of(plan_of(told, 2, "cpu").share):
        payload[each.operation] += each.payload
    measured = collectives.payload
    if parallel:
        # the one data-parallel rank goes through the reduction of its gradients all the same
        measured["all-reduce"] -= 4 * plan_of(told, 2, "cpu").share.num_weights
    assert payload.keys() <= measured.keys()
    largest = max(payload.values())
    for operation, size in measured.items():
        assert abs(size - payload[operation]) <= NORMS * largest, f"{operation}: {payload[operation]} told, {size} sent"
