"""Queries and keys normed over each head, at every layout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from megatron_mep.model.count import num_parameters
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, VOCABULARY, model_config, samples, whole
from tests.support.tolerance import assert_exact_equal, assert_within_budget

MODELS: dict[str, dict[str, Any]] = {
    "a key of each head": {},
    "rotated": {"encoding": {"name": "rope"}},
    "groups of two heads": {"num_query_groups": 2},
    "one group": {"num_query_groups": 1},
    "layernorm": {"norm": "layernorm", "num_query_groups": 2},
}
LAYOUTS = {
    "tensor 2": ParallelConfig(tensor=2),
    "tensor 2, sequence": ParallelConfig(tensor=2, sequence=True),
    "tensor 4": ParallelConfig(tensor=4),
    "tensor 4, sequence": ParallelConfig(tensor=4, sequence=True),
}
EVERY_HEAD = ("q_layernorm", "k_layernorm")


def built(parallel: ParallelConfig | None = None, **changes: Any) -> nn.Module:
    """A model whose gains and biases, where it has them, are no longer those of the start."""
    model = build_model(model_config(qk_norm=True, **changes), parallel or ParallelConfig(), VOCABULARY, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(norm in name for norm in EVERY_HEAD):
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    return model


def gradients(model: nn.Module, tensor_size: int = 1) -> dict[str, Tensor]:
    """Gradients of whole weights."""
    tokens = samples(0, 3)
    model.zero_grad()
    model(tokens[:, :-1], None, None, labels=tokens[:, 1:]).mean().backward()
    found = {}
    for name, parameter in model.named_parameters():
        parts: list[Any] = [None] * tensor_size
        distributed.all_gather_object(parts, parameter.grad)
        found[name] = whole(parts, parameter)
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gradients on one rank, in fp32 and in fp64."""
    file = tmp_path_factory.mktemp("expected") / "gradients.pt"
    run(_on_one_rank, 1, file)
    return file


def _on_one_rank(file: Path):
    joined()
    found = {}
    for what, changes in MODELS.items():
        model = built(**changes)
        found[what] = gradients(model), gradients(model.double())
    torch.save(found, file)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_one_rank(expected: Path, layout: str):
    run(_on_tensor_ranks, LAYOUTS[layout].tensor, expected, LAYOUTS[layout])


def _on_tensor_ranks(file: Path, layout: ParallelConfig):
    here = joined(tensor=layout.tensor)
    for what, (plain, exact) in torch.load(file).items():
        model = built(layout, **MODELS[what])
        sum_over_tensor_ranks(model, here.tensor_group)
        found = gradients(model, layout.tensor)
        assert found.keys() == plain.keys()
        assert sum(norm in name for name in found for norm in EVERY_HEAD) in (4, 8)
        for name, gradient in found.items():
            assert_within_budget(gradient, plain[name], exact[name], f"{what} at {layout}: {name}")


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_queries_and_keys_are_normed_over_the_dimensions_of_a_head(norm: str):
    run(_normed, 1, norm)


def _normed(norm: str):
    joined()
    model = built(norm=norm, num_query_groups=2).double()
    attention = model.decoder.layers[1].self_attention
    seen: dict[str, tuple[Tensor, ...]] = {}
    attention.linear_qkv.register_forward_hook(lambda _, __, output: seen.update(mixed=output))
    attention.core_attention.register_forward_pre_hook(lambda _, inputs: seen.update(core=inputs))
    model(samples(0, 2)[:, :-1], None, None)
    # in each of two groups: two queries, a key, a value, of 8 dimensions
    mixed = seen["mixed"][0].unflatten(-1, (2, 4, 8))
    query, key, value = seen["core"][:3]
    for normed, raw, module in (
        (query, mixed[..., :2, :].flatten(2, 3), attention.q_layernorm),
        (key, mixed[..., 2, :], attention.k_layernorm),
    ):
        centred = raw - raw.mean(-1, keepdim=True) if norm == "layernorm" else raw
        expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight
        if norm == "layernorm":
            expected = expected + module.bias
        torch.testing.assert_close(normed, expected, rtol=1e-12, atol=1e-12)
    assert_exact_equal(value, mixed[..., 3, :])


def test_it_changes_no_other_weight_at_the_start():
    run(_start, 1)


def _start():
    joined()
    without, beside = (
        dict(
            build_model(model_config(encoding=LEARNED, qk_norm=on), ParallelConfig(), VOCABULARY, 3).named_parameters()
        )
        for on in (False, True)
    )
    for name, weight in without.items():
        assert_exact_equal(beside.pop(name), weight, name)
    assert len(beside) == 2 * 2
    assert all(weight.eq(1).all() for weight in beside.values())


def test_its_gains_are_counted():
    run(_counted, 1)


def _counted():
    joined()
    for changes in MODELS.values():
        config = model_config(qk_norm=True, **changes)
        model = build_model(config, ParallelConfig(), VOCABULARY, seed=0)
        assert num_parameters(config, 384) == sum(parameter.numel() for parameter in model.parameters()), changes
