"""3D-RPE's scores inside a chunk, between neighbours and beyond, against complex numbers in Python's floats."""

import cmath
import math

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.products import scores
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.rpe_3d import Rpe3d
from tests.support.tolerance import assert_exact_equal

HEADS, GROUPS, D, LENGTH = 4, 2, 8, 23
SIZES = LayerSizes(HEADS, HEADS * D, D)
SHORT = Rpe3d(chunk_size=6, local_window=2)
"""Chunks of 4 tokens."""


def heads(number: int, seed: int, length: int = LENGTH) -> Tensor:
    return torch.randn(2, number, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def angle(query: int, key: int, rpe: Rpe3d, frequency: float) -> float:
    """By which the product of a query and a key turns."""
    size, window = rpe.chunk_size, rpe.local_window
    (a, m), (b, n) = (divmod(position, size - window) for position in (query, key))
    if a == b:
        return (query - key) * frequency
    place = min(m + size - window, size) if a == b + 1 else min(2 * (size - window) - 1, size)
    phase = rpe.chunk_base**-a - rpe.chunk_base**-b if a - b >= rpe.phase_from else 0.0
    return (place - n) * frequency + phase


def expected(query: Tensor, key: Tensor, rpe: Rpe3d) -> Tensor:
    result = torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for h in range(HEADS):
        for i in range(LENGTH):
            for j in range(i + 1):
                q, k = query[0, h, i].tolist(), key[0, h // (HEADS // GROUPS), j].tolist()
                result[h, i, j] = math.fsum(
                    (
                        complex(q[r], q[r + D // 2])
                        * complex(k[r], k[r + D // 2]).conjugate()
                        * cmath.exp(1j * angle(i, j, rpe, rpe.base ** (-2 * r / D)))
                    ).real
                    for r in range(D // 2)
                )
    return result


@pytest.mark.parametrize(
    "rpe",
    [
        SHORT,
        Rpe3d(chunk_size=6, local_window=2, phase_from=2, chunk_base=2.0),
        Rpe3d(chunk_size=5, local_window=0, base=100.0, chunk_base=3.0),
        Rpe3d(chunk_size=6, local_window=5),
    ],
    ids=["default", "as the code", "no window", "chunks of one"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_turn_by_place_and_phase(rpe: Rpe3d, dtype: torch.dtype):
    query, key, position = heads(HEADS, 1), heads(GROUPS, 2), torch.arange(LENGTH, dtype=dtype)
    found = rpe.of_pairs(query.to(dtype), key.to(dtype), position, position)
    assert found.dtype == dtype
    assert found.isfinite().all()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found[0].tril().double(), expected(query, key, rpe), rtol=0, atol=tolerance)


def test_it_is_rope_inside_a_chunk():
    query, key, position = heads(HEADS, 1), heads(GROUPS, 2), torch.arange(LENGTH).double()
    turned = (Rope().turned(each.permute(2, 0, 1, 3), position).permute(1, 2, 0, 3) for each in (query, key))
    found = Rpe3d(chunk_size=64, local_window=5).of_pairs(query, key, position, position)
    torch.testing.assert_close(found, scores(*turned), rtol=0, atol=1e-12)


def test_keys_in_the_local_window_are_at_their_true_distance():
    """Without phases, the scores of a query and the keys just before it are RoPE's, also in the chunk before."""
    query, key, position = heads(HEADS, 1), heads(GROUPS, 2), torch.arange(LENGTH).double()
    turned = (Rope().turned(each.permute(2, 0, 1, 3), position).permute(1, 2, 0, 3) for each in (query, key))
    rpe = Rpe3d(chunk_size=7, local_window=3, phase_from=2)
    found, rope = rpe.of_pairs(query, key, position, position), scores(*turned)
    distance = position[:, None] - position
    near = (distance >= 0) & (distance <= 3)
    torch.testing.assert_close(found[..., near], rope[..., near], rtol=0, atol=1e-12)
    assert not torch.allclose(found[..., distance == 9], rope[..., distance == 9])


def test_no_place_is_further_than_the_chunk_size():
    """The difference of places, read off the angle of a slow pair, at the end of 2^17 positions."""
    size, milliradian = 96, Rpe3d(base=1e6, chunk_size=96, local_window=8, phase_from=2, chunk_base=1e300)
    at_query, at_key = torch.arange(131_000.0, 131_072.0, 7.0), torch.arange(131_072.0)
    key, query = torch.zeros(1, 1, len(at_key), 4), torch.zeros(2, 1, 1, len(at_query), 4)
    # pair 1 is dimensions 1 and 3: with 1 in a key, 1 and -i in a query give the cosine and the sine
    key[..., 1], query[0, ..., 1], query[1, ..., 3] = 1, 1, -1
    cosine, sine = (milliradian.of_pairs(each, key, at_query, at_key)[0, 0] for each in query)
    places = 1000 * torch.atan2(sine, cosine)
    distance = at_query[:, None] - at_key
    # the first chunk alone has a phase here
    counted = (distance >= 0) & (at_key >= 88)
    assert places[counted].min() > -1e-3
    assert places[counted].max() < size + 1e-3
    near = counted & (distance <= 8)
    torch.testing.assert_close(places[near], distance[near], rtol=0, atol=1e-3)


def test_a_score_is_the_same_whatever_stands_beside():
    query, key, position = heads(HEADS, 1), heads(GROUPS, 2), torch.arange(LENGTH).double()
    whole = SHORT.of_pairs(query, key, position, position)
    for row in (0, 3, 4, 9, LENGTH - 1):
        seen, one = slice(0, row + 1), slice(row, row + 1)
        alone = SHORT.of_pairs(query[:, :, one], key[:, :, seen], position[one], position[seen])
        torch.testing.assert_close(alone, whole[:, :, one, seen], rtol=0, atol=1e-13)


def test_sizes_follow_the_training_length_unless_stated():
    assert Rpe3d().resolved(8192) == Rpe3d(chunk_size=6144, local_window=512)
    assert Rpe3d(chunk_size=600).resolved(8192) == Rpe3d(chunk_size=600, local_window=50)
    assert Rpe3d(local_window=0).resolved(1024) == Rpe3d(chunk_size=768, local_window=0)
    assert_exact_equal(torch.tensor(Rpe3d().resolved(1).chunk_length), torch.tensor(1))


@pytest.mark.parametrize("window", [6, 9])
def test_a_window_that_leaves_no_chunk_is_told(window: int):
    (mistake,) = Rpe3d(local_window=window).resolved(8).mistakes(SIZES)
    assert (mistake.key, mistake.value) == ("local_window", window)
    assert not Rpe3d(local_window=5).resolved(8).mistakes(SIZES)
    assert not Rpe3d(local_window=5).mistakes(SIZES), "the chunk size is not known yet"


def test_heads_of_odd_size_are_told():
    (mistake,) = SHORT.mistakes(LayerSizes(num_heads=4, hidden_size=28, head_size=7))
    assert (mistake.key, mistake.value) == ("name", "rpe_3d")
