"""What a model computes, put together from its tensor ranks, to be compared with what another layout computes."""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from megatron_mep.parallel.groups import seed_streams
from megatron_mep.parallel.tensor import is_encoding_weight
from tests.support.tiny import samples, whole
from tests.support.tolerance import assert_exact_equal, assert_within_budget

Results = dict[str, Tensor]

NUM_SAMPLES = 4
OF_ENCODING = "gradient of the encoding"
SEED = 11
"""What is drawn in a forward pass is drawn alike."""


def losses_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """`[B, S]`."""
    losses: Tensor = model(tokens[:, :-1], None, None, labels=tokens[:, 1:])
    return losses


def results_of(
    model: nn.Module, tensor_group: ProcessGroup, first: int = 0, context_group: ProcessGroup | None = None
) -> Results:
    """Weights, logits, losses and gradients; `first` is the sample that the batch begins with."""
    tokens = samples(0, NUM_SAMPLES).roll(-first, 0)
    parameters = dict(model.named_parameters())
    weights = {name: weight.detach().clone() for name, weight in parameters.items()}
    with torch.no_grad():
        seed_streams(SEED)
        logits = model(tokens[:, :-1], None, None, runtime_gather_output=True)
    model.zero_grad()
    seed_streams(SEED)
    losses = losses_of(model, tokens)
    losses.mean().backward()
    if context_group is not None:
        for parameter in parameters.values():
            distributed.all_reduce(parameter.grad, distributed.ReduceOp.AVG, context_group)
    parts: list[Any] = [None] * tensor_group.size()
    distributed.all_gather_object(
        parts, {name: (weights[name], parameters[name].grad) for name in weights}, tensor_group
    )
    results = {"logits": logits.roll(first, 0), "losses": losses.detach().roll(first, 0)}
    encoding = [torch.zeros(1)]
    for name, parameter in parameters.items():
        weight, gradient = (whole(shards, parameter) for shards in zip(*(part[name] for part in parts), strict=True))
        results[f"weight {name}"] = weight
        if is_encoding_weight(parameter):
            encoding.append(gradient.flatten())
        else:
            results[f"gradient {name}"] = gradient
    return results | {OF_ENCODING: torch.cat(encoding)}


def undivided_results(model: nn.Module, tensor_group: ProcessGroup) -> tuple[Results, Results]:
    """What `assert_alike` compares with, in fp32 and in fp64; the model is fp64 afterwards.

    The few numbers of an encoding's gradient are too few to tell how far rounding takes them: of the gradients that the
    samples give in different orders, the one that errs most counts.
    """
    plain, *others = (results_of(model, tensor_group, first) for first in range(NUM_SAMPLES))
    exact = results_of(model.double(), tensor_group)
    wide = exact[OF_ENCODING].double()
    candidates = [each[OF_ENCODING] for each in (plain, *others)]
    plain[OF_ENCODING] = max(candidates, key=lambda gradient: float((gradient.double() - wide).abs().max()))
    return plain, exact


def assert_alike(what: str, found: Results, plain: Results, exact: Results) -> None:
    """Weights equal bit by bit, all else within the budget that a layout without division sets."""
    assert found.keys() == plain.keys()
    for name, actual in found.items():
        if name.startswith("weight "):
            assert_exact_equal(actual, plain[name], f"{what}: {name}")
        else:
            assert_within_budget(actual, plain[name], exact[name].double(), f"{what}: {name}")
