"""CABLE's biases, token by token in Python's floats."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.key_bias import key_bias_attention, running_sum_of
from megatron_mep.attention.reference import dense_attention
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import KeyBias
from megatron_mep.encodings.cable import Cable, CableRelu, CableSoftplus
from megatron_mep.encodings.kernels import unbounded
from tests.encodings.content import HEADS, HIDDEN, SIZES, bias_of, drawn, initial, random

LENGTH = 9
ALL = (Cable(), CableRelu(), CableSoftplus())
every = pytest.mark.parametrize("encoding", ALL, ids=[encoding.name for encoding in ALL])


def expected(encoding: KeyBias, hidden: Tensor, weights: dict[str, Tensor], query: int, key: int, head: int) -> float:
    """The paper's bias of one pair, with the sign of a penalty, under a sample's hidden states `[S, hidden_size]`."""

    def dot(name: str, token: int) -> float:
        return math.fsum(x * w for x, w in zip(hidden[token].tolist(), weights[name][head].tolist(), strict=True))

    def softplus(number: float) -> float:
        return math.log1p(math.exp(number))

    between = range(key + 1, query + 1)
    if isinstance(encoding, CableSoftplus):
        return -math.fsum(softplus(dot("decay", token) + float(weights["decay_bias"][head])) for token in between)
    total = math.fsum(max(dot("decay", token), 0.0) for token in between)
    return -total * (softplus(dot("strength", query)) if isinstance(encoding, Cable) else 1.0)


@every
def test_bias_is_the_papers(encoding: KeyBias) -> None:
    hidden, weights = random(LENGTH, 2, HIDDEN), drawn(encoding)
    bias = bias_of(encoding, hidden, weights)
    for sample in range(2):
        for head in range(HEADS):
            for query in range(LENGTH):
                for key in range(query + 1):
                    one = expected(encoding, hidden[:, sample], weights, query, key, head)
                    assert float(bias[sample, head, query, key]) == pytest.approx(one, rel=1e-12, abs=1e-12)


@every
def test_more_tokens_between_are_never_rewarded(encoding: KeyBias) -> None:
    """As printed, the paper's bias has the other sign, and grows with distance."""
    bias = bias_of(encoding, random(LENGTH, 2, HIDDEN), drawn(encoding))
    steps = bias[..., -1, :].diff()
    assert (steps >= 0).all()
    assert (steps > 0).any()


def test_constant_tokens_with_alibis_slopes_as_weights_give_alibi() -> None:
    hidden = random(LENGTH, 2, HIDDEN)
    hidden[..., 0] = 1
    slope = Alibi().weights(HEADS, torch.Generator())["slope"].value.double()
    only_first = torch.eye(HIDDEN, dtype=torch.float64)[:1]
    weights = {"decay": only_first.expand(HEADS, -1), "strength": unbounded(slope)[:, None] * only_first}
    query, key, value = random(3, 2, HEADS, LENGTH, 5, seed=1)
    sums = running_sum_of(Cable().increments(hidden, **weights))
    ours = key_bias_attention(query, key, value, sums, Cable().gain(hidden, **weights), scale=0.3)
    bias = Alibi().of_distance(torch.arange(LENGTH).double(), slope=slope)
    torch.testing.assert_close(ours, dense_attention(query, key, value, bias, scale=0.3), rtol=1e-12, atol=1e-12)


def test_the_released_variant_without_weights_is_a_slope_of_log_2() -> None:
    weights = {name: torch.zeros_like(weight) for name, weight in drawn(CableSoftplus()).items()}
    bias = bias_of(CableSoftplus(), random(LENGTH, 1, HIDDEN), weights)[0]
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).clamp(min=0)
    torch.testing.assert_close(bias, (-math.log(2) * distance.double()).expand(HEADS, -1, -1), rtol=1e-12, atol=0)


def test_a_token_that_relu_silences_learns_nothing_and_softplus_silences_none() -> None:
    hidden = -torch.ones(1, 1, HIDDEN, dtype=torch.float64)
    for encoding, learns in ((CableRelu(), False), (CableSoftplus(), True)):
        weights = {name: torch.ones_like(weight).requires_grad_() for name, weight in drawn(encoding).items()}
        encoding.increments(hidden, **weights).sum().backward()
        assert weights["decay"].grad is not None
        assert bool(weights["decay"].grad.any()) == learns


@every
def test_initial_weights_are_normal_and_biases_zero(encoding: KeyBias) -> None:
    wide = type(SIZES)(64, 512, 8)
    for name, weight in encoding.layer_weights(wide, torch.Generator().manual_seed(0)).items():
        assert weight.learned
        assert weight.per_head
        if name == "decay_bias":
            assert not weight.value.any()
        else:
            assert weight.value.shape == (64, 512)
            assert float(weight.value.std()) == pytest.approx(0.02, rel=0.02)
            assert float(weight.value.mean()) == pytest.approx(0, abs=5e-4)
    assert set(initial(encoding)) == set(encoding.layer_weights(wide, torch.Generator()))


@every
def test_hidden_states_in_bf16_are_summed_in_fp32(encoding: KeyBias) -> None:
    weights = {name: weight.float() for name, weight in drawn(encoding).items()}
    hidden = random(LENGTH, 2, HIDDEN).bfloat16()
    increments = encoding.increments(hidden, **weights)
    assert increments.dtype == torch.float32
    exact = encoding.increments(hidden.double(), **{name: weight.double() for name, weight in weights.items()})
    torch.testing.assert_close(increments.double(), exact, rtol=1e-5, atol=1e-5)
