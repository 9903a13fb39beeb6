from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from megatron.core.inference.contexts import StaticInferenceContext
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, SEQ_LENGTH, VOCABULARY, joined_again, model_config, samples
from tests.support.tolerance import assert_exact_equal, assert_within_budget

SEED = 3
ENCODINGS: dict[str, dict[str, Any]] = {
    "mep": {"name": "mep"},
    "learned mep": LEARNED,
    "alibi": {"name": "alibi"},
    "rope": {"name": "rope"},
    "nope": {"name": "nope"},
}
MODELS: dict[str, dict[str, Any]] = {
    **{name: {"encoding": encoding} for name, encoding in ENCODINGS.items()},
    "learned mep, 2 groups": {"encoding": LEARNED, "num_query_groups": 2},
    "learned mep, 1 group": {"encoding": LEARNED, "num_query_groups": 1},
    "rope, 1 group": {"encoding": {"name": "rope"}, "num_query_groups": 1},
    "gelu, layernorm, biases, tied": {
        "activation": "gelu",
        "norm": "layernorm",
        "linear_bias": True,
        "tied_embeddings": True,
    },
}
Results = dict[str, Tensor]


def built(parallel: ParallelConfig | None = None, recompute: Any = "none", **changes: Any) -> nn.Module:
    return build_model(
        model_config(**changes), parallel or ParallelConfig(), VOCABULARY, SEED, torch.float32, recompute
    )


def losses_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """`[B, S]`."""
    return model(tokens[:, :-1], None, None, labels=tokens[:, 1:])


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_every_layout_starts_and_computes_alike():
    run(_layouts, 4)


def _layouts():
    expected: dict[str, tuple[Results, Results]] = {}
    for tensor, enter in ((1, joined), (2, joined_again), (4, joined_again)):
        here = enter(tensor=tensor)
        for sequence in (False, True)[: min(tensor, 2)]:
            layout = ParallelConfig(tensor=tensor, sequence=sequence)
            for name, changes in MODELS.items():
                model = built(layout, **changes)
                sum_over_tensor_ranks(model, here.tensor_group)
                found = _results(model, here.tensor_group)
                if tensor == 1:
                    expected[name] = found, _results(model.double(), here.tensor_group)
                else:
                    _compare(f"{name} at {layout}", found, *expected[name])


def _results(model: nn.Module, tensor_group: ProcessGroup) -> Results:
    """Initial weights, logits, losses and gradients, put together from the tensor ranks."""
    tokens = samples(0, 3)
    parameters = dict(model.named_parameters())
    weights = {f"weight {name}": whole_of(weight, weight, tensor_group) for name, weight in parameters.items()}
    with torch.no_grad():
        logits = model(tokens[:, :-1], None, None, runtime_gather_output=True)
    model.zero_grad()
    losses = losses_of(model, tokens)
    losses.mean().backward()
    gradients = {f"gradient {name}": whole_of(weight.grad, weight, tensor_group) for name, weight in parameters.items()}
    # a number for each head is too few to tell from plain PyTorch how far rounding takes them
    encoding = [gradients.pop(name) for name in list(gradients) if "encoding_weights" in name]
    gradients["gradient of the encoding"] = torch.cat(encoding) if encoding else torch.empty(1).fill_(0)
    return weights | gradients | {"logits": logits, "losses": losses.detach()}


def _compare(what: str, found: Results, plain: Results, exact: Results) -> None:
    assert found.keys() == plain.keys()
    for name, actual in found.items():
        if name.startswith("weight "):
            assert_exact_equal(actual, plain[name], f"{what}: {name}")
        else:
            assert_within_budget(actual, plain[name], exact[name].double(), f"{what}: {name}")


def whole_of(local: Tensor, parameter: nn.Parameter, tensor_group: ProcessGroup) -> Tensor:
    """A weight or its gradient put together; Megatron marks the dim, and stride 2 where gate and up are stacked."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return local.detach().clone()
    parts = [torch.empty_like(local) for _ in range(tensor_group.size())]
    distributed.all_gather(parts, local.detach().contiguous(), group=tensor_group)
    pieces = zip(*(part.chunk(parameter.partition_stride, parameter.partition_dim) for part in parts), strict=True)
    return torch.cat([piece for row in pieces for piece in row], parameter.partition_dim)


