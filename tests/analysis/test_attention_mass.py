"""Attention by distance, against sums over all pairs."""

from functools import partial

import pytest
import torch

from megatron_mep.analysis.attention_mass import AttentionMass
from megatron_mep.attention.scoring import Scoring
from megatron_mep.encodings.alibi import Alibi
from tests.analysis.toy import HEAD_SIZE, NUM_HEADS, uniform, uniform_mass
from tests.support.memory import peak_bytes

BOTH = torch.tensor([True, True])


@pytest.mark.parametrize("length", [2, 63, 64, 65, 200])
def test_attention_alike_to_all_keys_falls_with_the_number_of_queries_that_see_them(length: int):
    mass = AttentionMass(length)
    mass.add(0, uniform(2, length), BOTH)
    expected = torch.tensor(uniform_mass(length), dtype=torch.float64).expand(1, NUM_HEADS, length)
    torch.testing.assert_close(mass.total / (2 * length), expected, rtol=1e-6, atol=0)
    assert sum(uniform_mass(length)) == pytest.approx(1)


def test_every_head_has_a_sum_of_its_own_over_the_samples_that_count():
    length, generator = 70, torch.Generator().manual_seed(3)
    query = 3 * torch.randn(3, NUM_HEADS, length, HEAD_SIZE, generator=generator)
    key = torch.randn(3, NUM_HEADS // 2, length, HEAD_SIZE, generator=generator)
    bias = -torch.arange(length) * torch.tensor([[1.0], [0.3], [0.1], [0.0]])
    mass, counts = AttentionMass(length), torch.tensor([True, False, True])
    for layer in range(2):
        mass.add(layer, Scoring(Alibi(), query, key * (1 + layer), bias, 0.5), counts)
    expected = torch.zeros(2, NUM_HEADS, length, dtype=torch.float64)
    for layer in range(2):
        for sample in (0, 2):
            for head in range(NUM_HEADS):
                keys = key[sample, head // 2].double() * (1 + layer)
                for place in range(length):
                    scores = 0.5 * keys[: place + 1] @ query[sample, head, place].double()
                    scores += bias[head, : place + 1].double().flip(0)
                    expected[layer, head, : place + 1] += scores.softmax(0).flip(0)
    torch.testing.assert_close(mass.total, expected, rtol=1e-5, atol=1e-6)


def test_memory_grows_with_the_length_alone():
    def looked_at(length: int) -> None:
        AttentionMass(length).add(0, uniform(1, length), BOTH[:1])

    short, long = (peak_bytes(partial(looked_at, length)) for length in (512, 2048))
    assert long < 4.5 * short
