"""What attention is given: a bias that keeps every distance apart in any type, and the bound of normed scores."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, VOCABULARY, model_config

LENGTH = 131_072


@pytest.mark.parametrize("name", ["mep", "alibi"])
def test_every_distance_of_a_bf16_model_has_a_bias_of_its_own(name: str):
    run(_distinct, 1, name)


def _distinct(name: str):
    joined()
    model = build_model(model_config(encoding={"name": name}), ParallelConfig(), VOCABULARY, seed=0).bfloat16().eval()
    layer = next(encoded_layers(model))
    given: list[Tensor] = []

    def record(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, **_: Any) -> Tensor:
        given.append(bias)
        return query

    layer.evaluation_backend = replace(layer.evaluation_backend, attend=record, counts_work=False)
    tokens = torch.zeros(LENGTH, 1, 4, 8, dtype=torch.bfloat16)
    layer(tokens, tokens, tokens)
    (bias,) = given
    assert bias.dtype == torch.float32
    assert bias.shape == (4, LENGTH)
    assert bool((bias.diff() < 0).all())


def test_the_bound_of_normed_scores_reaches_backends_that_take_one():
    run(_bound, 1)


def _bound():
    joined()
    model = build_model(model_config(qk_norm=True), ParallelConfig(), VOCABULARY, seed=0).eval()
    given: list[Any] = []

    def record(query: Tensor, *_: Tensor, bound: Tensor | None = None, **__: Any) -> Tensor:
        given.append(bound)
        return query

    for number, layer in enumerate(encoded_layers(model)):
        layer.evaluation_backend = replace(layer.evaluation_backend, attend=record, takes_bound=number == 0)
        model.decoder.layers[number].self_attention.q_layernorm.weight.data.fill_(3.0)
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64), None, None)
    # gains of 3 and 1, heads of 8
    assert float(given[0]) == pytest.approx(3 * 8**0.5, rel=1e-5)
    assert given[1] is None


def test_fewer_queries_than_keys_train_the_bias_as_it_is_now():
    run(_fewer, 1)


def _fewer():
    joined()
    model = build_model(model_config(encoding=LEARNED), ParallelConfig(), VOCABULARY, seed=0)
    layer = next(encoded_layers(model)).eval()
    query, key = torch.randn(10, 1, 4, 8), torch.randn(60, 1, 4, 8)
    with torch.no_grad():
        before = layer(query, key, key)
        for weight in layer.parameters():
            weight.add_(1.0)
    # a bias kept from the call before has no gradient, and is that of other weights
    after = layer(query, key, key)
    assert (after - before).abs().max() > 1e-3
    after.sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in layer.parameters())
