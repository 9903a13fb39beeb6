"""Weights in attention as they are first drawn."""

import torch

from tests.every_encoding.cases import biases, content, rotary, tape
from tests.every_encoding.layer import sizes_of


def test_initial_weights_are_fp32_whatever_the_default_type() -> None:
    sizes = sizes_of(8)
    for case in (*biases.CASES, *content.CASES, *rotary.CASES, *tape.CASES):
        expected = case.encoding.layer_weights(sizes, torch.Generator().manual_seed(1))
        torch.set_default_dtype(torch.bfloat16)
        try:
            found = case.encoding.layer_weights(sizes, torch.Generator().manual_seed(1))
        finally:
            torch.set_default_dtype(torch.float32)
        for name, weight in expected.items():
            assert found[name].value.dtype == torch.float32, f"{case.name}: {name}"
            assert found[name].value.equal(weight.value), f"{case.name}: {name}"
