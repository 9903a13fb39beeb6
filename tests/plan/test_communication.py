"""A plan's traffic against the collectives that a step calls."""

from collections import Counter
from typing import Any

import pytest
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

OPERATIONS = {
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "alltoall_base_": "all-to-all",
    "send": "send",
}
OTHERS = ("recv_", "broadcast_")
"""What arrives, and a few numbers."""
NORMS = 0.01
"""Share of a payload that gradients of norms and norms of gradients come to, which are not counted."""

CASES: tuple[tuple[Tree, Tree], ...] = (
    ({"zero_stage": 0}, {}),
    ({"zero_stage": 1}, {}),
    ({"zero_stage": 1, "precision": "bf16"}, {}),
    ({"zero_stage": 2, "global_batch_size": 8}, {}),
    ({"zero_stage": 3, "global_batch_size": 8}, {}),
    ({}, {"tensor": 2}),
    ({"recompute": "full"}, {"tensor": 2}),
    ({}, {"tensor": 2, "sequence": True}),
    ({"recompute": "full"}, {"tensor": 2, "sequence": True}),
    *(({}, {"context": 2, "context_exchange": exchange}) for exchange in ("all_gather", "ulysses", "ring")),
    ({"recompute": "full", "precision": "bf16"}, {"context": 2}),
    ({"recompute": "selective"}, {"context": 2, "context_exchange": "ring"}),
    ({"global_batch_size": 8}, {"pipeline": 2}),
    ({"global_batch_size": 8}, {"pipeline": 2, "virtual_pipeline": 2}),
)


class Collectives(TorchDispatchMode):
    """Sums the bytes of whole tensors by the operation that sends them."""

    def __init__(self) -> None:
        super().__init__()
        self.payload: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            name = function._schema.name.split("::")[1]
            if name not in OTHERS:
                self.payload[OPERATIONS[name]] += max(
                    each.nbytes for each in tree_leaves(args) if isinstance(each, Tensor)
                )
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("training", "parallel"), CASES, ids=str)
def test_a_step_sends_what_is_told(training: Tree, parallel: Tree):
    run(_sends, 2, training, parallel)


def _sends(training: Tree, parallel: Tree) -> None:
    groups = joined(**parallel)
    model_of_stages = {"num_layers": 4, "tied_embeddings": True} if "pipeline" in parallel else {}
    told = run_with(model_of_stages, training, parallel)
    share = list(plan_of(told, 2, "cpu").share.of_all_stages())[groups.pipeline_rank]
    dtype = dtype_of(told.training.precision)
    model = build_model(told.model, told.parallel, VOCABULARY, 0, dtype, told.training.recompute)
    engine = build_engine(model, told.training, groups)
    # in its first step ZeRO 3 does not know yet what it may keep
    for step in (1, 2):
        starts = micro_batch_starts(step, told.training, groups)
        with Collectives() as collectives:
            train_step(engine, lambda first: samples(first, 2, LENGTH), starts, groups)
    payload: Counter[str] = Counter()
    for each in communication_of(share):
        payload[each.operation] += each.payload
    measured = collectives.payload
    if share.copies == 1:
        # the one rank that holds these weights goes through the reduction of their gradients all the same
        measured["all-reduce"] -= 4 * share.num_weights
    if share.tensor == 1 and share.stage.is_last:
        # and the one that holds all of the vocabulary through that of its loss
        measured["all-reduce"] -= 3 * share.micro_batches * 4 * share.tokens
    assert payload.keys() <= measured.keys()
    largest = max(payload.values())
    for operation, size in measured.items():
        assert abs(size - payload[operation]) <= NORMS * largest, f"{operation}: {payload[operation]} told, {size} sent"
