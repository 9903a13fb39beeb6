"""The Forgetting Transformer's bias, as products of its gates."""

import math

import pytest
import torch

from megatron_mep.attention.key_bias import key_bias_attention, running_sum_of
from megatron_mep.attention.reference import dense_attention
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.fox import Fox
from tests.encodings.content import HEADS, HIDDEN, SIZES, bias_of, drawn, random

LENGTH = 9


def test_bias_is_the_logarithm_of_the_product_of_the_gates_between() -> None:
    hidden, weights = random(LENGTH, 2, HIDDEN), drawn(Fox())
    bias = bias_of(Fox(), hidden, weights)
    for sample in range(2):
        for head in range(HEADS):
            w, a = weights["gate"][head].tolist(), float(weights["gate_bias"][head])
            logits = [
                math.fsum(x * y for x, y in zip(token, w, strict=True)) + a for token in hidden[:, sample].tolist()
            ]
            gates = [1 / (1 + math.exp(-logit)) for logit in logits]
            for query in range(LENGTH):
                for key in range(query + 1):
                    kept = math.prod(gates[key + 1 : query + 1])
                    assert math.exp(float(bias[sample, head, query, key])) == pytest.approx(kept, rel=1e-12)


def test_constant_gates_give_alibi() -> None:
    slope = Alibi().weights(HEADS, torch.Generator())["slope"].value.double()
    # the gate e^-m is the sigmoid of -log(e^m - 1)
    weights = {"gate": torch.zeros(HEADS, HIDDEN).double(), "gate_bias": -torch.log(torch.expm1(slope))}
    query, key, value = random(3, 2, HEADS, LENGTH, 5, seed=1)
    sums = running_sum_of(Fox().increments(random(LENGTH, 2, HIDDEN), **weights))
    ours = key_bias_attention(query, key, value, sums, Fox().gain(random(LENGTH, 2, HIDDEN)), scale=0.3)
    bias = Alibi().of_distance(torch.arange(LENGTH).double(), slope=slope)
    torch.testing.assert_close(ours, dense_attention(query, key, value, bias, scale=0.3), rtol=1e-12, atol=1e-12)


def test_gates_that_are_shut_or_open_stay_finite() -> None:
    hidden = torch.tensor([[[1e4]], [[-1e4]]])
    weights = {"gate": torch.ones(1, 1, requires_grad=True), "gate_bias": torch.zeros(1, requires_grad=True)}
    increments = Fox().increments(hidden, **weights)
    assert increments.flatten().tolist() == [0, 1e4]
    increments.sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in weights.values())


@pytest.mark.parametrize("bias", [5.0, 0.0])
def test_gates_start_as_the_option_says(bias: float) -> None:
    declared = Fox(initial_bias=bias).layer_weights(type(SIZES)(64, 512, 8), torch.Generator().manual_seed(0))
    assert declared["gate_bias"].value.tolist() == [bias] * 64
    assert float(declared["gate"].value.std()) == pytest.approx(0.02, rel=0.02)
    assert all(weight.learned and weight.per_head for weight in declared.values())
