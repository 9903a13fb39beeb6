"""xPos' scores, against complex numbers in Python's floats, near and far."""

import cmath
import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.products import scores
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.xpos import Xpos
from tests.encodings.oracle import fp64
from tests.support.tolerance import assert_exact_equal

HEADS, GROUPS, D = 4, 2, 8
FAR = [0, 1, 2, 63, 1000, 20_000, 131_070, 131_071]


def heads(number: int, length: int, seed: int) -> Tensor:
    """`[B, H, S, D]` in fp64."""
    return torch.randn(2, number, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def score(query: list[float], key: list[float], distance: int, gamma: float = 0.4, scale_base: float = 512) -> float:
    """Sum over pairs of the real part of q conj(k) e^(i d theta) zeta^(d / s)."""
    half = len(query) // 2
    parts = []
    for m in range(half):
        zeta = (2 * m + gamma * 2 * half) / ((1 + gamma) * 2 * half)
        pair = complex(query[m], query[m + half]) * complex(key[m], key[m + half]).conjugate()
        turned = pair * cmath.exp(1j * distance * 10_000 ** (-2 * m / (2 * half)))
        parts.append(turned.real * zeta ** (distance / scale_base))
    return math.fsum(parts)


def expected(query: Tensor, key: Tensor, at_query: list[int], at_key: list[int], **options: float) -> Tensor:
    """Of the first sample, zero where keys are in the future: `[H, Q, K]`."""
    result = torch.zeros(HEADS, len(at_query), len(at_key), dtype=torch.float64)
    for h in range(HEADS):
        for i, position in enumerate(at_query):
            for j, before in enumerate(at_key):
                if before <= position:
                    of_key = key[0, h // (HEADS // GROUPS), j].tolist()
                    result[h, i, j] = score(query[0, h, i].tolist(), of_key, position - before, **options)
    return result


def ours(xpos: Xpos, query: Tensor, key: Tensor, at_query: list[int], at_key: list[int]) -> Tensor:
    positions = (torch.tensor(at, dtype=query.dtype) for at in (at_query, at_key))
    result = xpos.of_pairs(query, key, *positions)
    assert result.isfinite().all(), "keys in the future too"
    return result.where(torch.tensor(at_key) <= torch.tensor(at_query)[:, None], 0)


@pytest.mark.parametrize("options", [{}, {"gamma": 0.1, "scale_base": 64.0}])
@pytest.mark.parametrize("at_query", [[63], [1000, 1001, 1002], FAR, [131_071, 63, 1000]])
def test_scores_are_rotations_that_fade(options: dict[str, float], at_query: list[int]):
    query, key = heads(HEADS, len(at_query), 1), heads(GROUPS, len(FAR), 2)
    found = ours(Xpos.model_validate(options), query, key, at_query, FAR)[0]
    # a position times a frequency has an error of 10^-11
    torch.testing.assert_close(found, expected(query, key, at_query, FAR, **options), rtol=0, atol=1e-9)


def test_the_slowest_to_fade_is_the_slowest_to_turn():
    """The numbers of the released code for a head of 8: (0, 2, 4, 6) + 3.2 over 11.2."""
    one = torch.eye(D, dtype=torch.float64)[None, None, :4]
    found = Xpos(base=1e300).of_pairs(one, one, fp64([512.0] * 4), fp64([0.0] * 4))[0, 0].diagonal()
    torch.testing.assert_close(found[1:], fp64([5.2 / 11.2, 7.2 / 11.2, 9.2 / 11.2]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("options", [{"gamma": 1e30}, {"scale_base": 1e30}])
def test_it_is_rope_where_nothing_fades(options: dict[str, float]):
    query, key, position = heads(HEADS, 8, 1), heads(GROUPS, 8, 2), fp64(FAR)
    turned = (Rope().turned(each.permute(2, 0, 1, 3), position).permute(1, 2, 0, 3) for each in (query, key))
    assert_exact_equal(Xpos.model_validate(options).of_pairs(query, key, position, position), scores(*turned))


def test_fp32_is_finite_and_exact_over_all_lengths():
    """Centred on the middle of the sequence, as in the released code, factors overflow from 70 thousand on."""
    query, key = heads(HEADS, len(FAR), 1), heads(GROUPS, len(FAR), 2)
    found = ours(Xpos(), query.float(), key.float(), FAR, FAR)[0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected(query, key, FAR, FAR), rtol=0, atol=1e-5)
    assert ours(Xpos(), query.float(), key.float(), FAR, FAR)[:, :, -1, 0].abs().max() > 0, "slow pairs are left"


def test_what_has_faded_beyond_fp32_is_zero_and_has_finite_gradients():
    query, key = (heads(number, 8, number).float().requires_grad_() for number in (HEADS, GROUPS))
    found = Xpos(scale_base=1.0).of_pairs(query, key, torch.tensor(FAR).float(), torch.tensor(FAR).float())
    assert not found[:, :, -1, :4].any()
    found.tril().sum().backward()
    for each in (query, key):
        assert each.grad.isfinite().all()
        assert each.grad.abs().amax(-1).all()


def test_a_score_is_the_same_whatever_stands_beside():
    query, key, position = heads(HEADS, 8, 1), heads(GROUPS, 8, 2), fp64(FAR)
    whole = Xpos().of_pairs(query, key, position, position).tril()
    for row in range(8):
        seen = slice(0, row + 1)
        alone = Xpos().of_pairs(query[:, :, row : row + 1], key[:, :, seen], position[row : row + 1], position[seen])
        torch.testing.assert_close(alone, whole[:, :, row : row + 1, seen], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("options", [{"gamma": 0.0}, {"scale_base": 0.0}, {"base": 1.0}])
def test_what_fades_to_nothing_at_once_is_refused(options: dict[str, float]):
    with pytest.raises(ValidationError):
        Xpos.model_validate(options)


def test_heads_of_odd_size_are_told():
    (mistake,) = Xpos().mistakes(LayerSizes(num_heads=4, hidden_size=28, head_size=7))
    assert (mistake.key, mistake.value) == ("name", "xpos")
    assert not Xpos().mistakes(LayerSizes(num_heads=4, hidden_size=32, head_size=8))
