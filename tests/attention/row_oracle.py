"""Causal attention one query at a time whose scores are changed on the way, and what its tests share."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.attention.oracle import SCALE, LargestStorage, Shape
from tests.support.tolerance import assert_within_budget

Row = Callable[[int, int, Tensor], Tensor]
"""`(sample, position, scaled scores [H, position + 1])` -> new scores."""
Attend = Callable[[dict[str, Tensor]], Tensor]
"""The output from the leaves by name, `query`, `key` and `value` among them."""


def attend_by_row(query: Tensor, key: Tensor, value: Tensor, new_scores: Row) -> Tensor:
    """Each query on its own, all heads of it, over the keys up to itself."""
    num_samples, num_heads, num_queries, _ = query.shape
    num_groups, num_keys = key.shape[1:3]
    group_of = [head // (num_heads // num_groups) for head in range(num_heads)]
    samples = []
    for sample in range(num_samples):
        rows = []
        for index in range(num_queries):
            position = num_keys - num_queries + index
            keys, values = (tensor[sample, :, : position + 1] for tensor in (key, value))
            scores = [SCALE * keys[group] @ query[sample, head, index] for head, group in enumerate(group_of)]
            new = new_scores(sample, position, torch.stack(scores))
            rows.append(torch.stack([new[head].softmax(0) @ values[group] for head, group in enumerate(group_of)]))
        samples.append(torch.stack(rows, dim=1))
    return torch.stack(samples)


def random_leaves(shape: Shape, dtype: torch.dtype = torch.float32, **others: Tensor) -> dict[str, Tensor]:
    """Query, key and value in a type, and others as they are."""
    generator = torch.Generator().manual_seed(0)
    batch, heads, groups, queries, keys, size = shape
    sizes = {"query": (batch, heads, queries, size), "key": (batch, groups, keys, size)}
    leaves = {
        name: torch.randn(sizes.get(name, sizes["key"]), generator=generator).to(dtype)
        for name in ("query", "key", "value")
    }
    return {name: leaf.requires_grad_() for name, leaf in (leaves | others).items()}


def in_double(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers in fp64."""
    return {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}


PER_TOKEN = ("query", "key", "value", "running_sum", "gain")


def results_of(attend: Attend, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output and the gradients of all leaves, by name; those of an encoding's weights as one.

    A weight alone may have too few numbers to tell from plain PyTorch how far rounding takes it.
    """
    output = attend(leaves)
    grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(leaves["query"].dtype)
    gradients = torch.autograd.grad(
        output, tuple(leaves.values()), grad_output.to(output.dtype), materialize_grads=True
    )
    by_name = dict(zip(leaves, gradients, strict=True))
    results = {"output": output.detach()}
    results |= {f"gradient of {name}": by_name.pop(name) for name in PER_TOKEN if name in by_name}
    if by_name:
        results["gradient of the weights"] = torch.cat([gradient.flatten() for gradient in by_name.values()])
    return results


def assert_correct(leaves: dict[str, Tensor], attend: Attend, plainly: Attend, by_row: Attend) -> None:
    """Output and all gradients are within the budget that plain PyTorch sets."""
    actual, plain, exact = (
        results_of(attend, leaves),
        results_of(plainly, leaves),
        results_of(by_row, in_double(leaves)),
    )
    for name in exact:
        assert_within_budget(actual[name], plain[name], exact[name], name)


def assert_fp64_correct(leaves: dict[str, Tensor], attend: Attend, by_row: Attend) -> None:
    """In fp64 nothing but fp64's own rounding is lost."""
    leaves = in_double(leaves)
    actual, exact = (results_of(each, leaves) for each in (attend, by_row))
    for name in exact:
        torch.testing.assert_close(actual[name], exact[name], rtol=1e-12, atol=1e-12, msg=name)


def largest_storage(attend: Attend, leaves: dict[str, Tensor]) -> int:
    """The most numbers that any one tensor of both passes holds."""
    with LargestStorage() as largest:
        results_of(attend, leaves)
    return largest.numel


def assert_blind_to_the_future(attend: Attend, leaves: dict[str, Tensor], position: int) -> None:
    """No bit of an output up to a position changes with the tokens after it; what comes after it does."""
    after = position + 1
    changed = dict(leaves)
    for name in ("query", "key", "value"):
        changed[name] = leaves[name].detach().clone()
        changed[name][:, :, after:] = 100 - 3 * changed[name][:, :, after:].flip(-1)
    with torch.no_grad():
        before, now = attend(leaves), attend(changed)
    assert torch.equal(before[:, :, :after], now[:, :, :after])
    assert not (before[:, :, after:] == now[:, :, after:]).all(dim=-1).any()
