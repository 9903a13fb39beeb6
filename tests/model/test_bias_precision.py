"""The bias that attention gets keeps every distance apart, whatever type the model has."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import encoded_layers
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import VOCABULARY, model_config

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
