"""LRPE's orthogonal mix of dimensions and the rotation after it, in the layout of the released code."""

import cmath
import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.lrpe import Lrpe
from megatron_mep.encodings.rope import Rope
from tests.encodings.oracle import fp64
from tests.support.tolerance import assert_exact_equal

HEADS, D = 3, 8
SIZES = LayerSizes(HEADS, HEADS * D, D)
POSITIONS = [0, 1, 2, 63, 1000]
ALL = [
    Lrpe(transform=transform, core=core)  # type: ignore[arg-type]
    for transform in ("identity", "householder", "dct", "odd_even")
    for core in ("rope", "mixed")
]
every = pytest.mark.parametrize("lrpe", ALL, ids=[f"{one.transform}-{one.core}" for one in ALL])


def weights_of(lrpe: Lrpe) -> dict[str, Tensor]:
    declared = lrpe.layer_weights(SIZES, torch.Generator().manual_seed(4))
    return {name: weight.value.double() for name, weight in declared.items()}


def heads(length: int, seed: int = 5, head_size: int = D) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, 2, HEADS, head_size, dtype=torch.float64, generator=generator)


def beside(vector: list[float]) -> list[float]:
    """A head in the code's layout, where dimensions 2 m and 2 m + 1 are pair m."""
    half = len(vector) // 2
    return [vector[m + part * half] for m in range(half) for part in (0, 1)]


def apart(vector: list[float]) -> list[float]:
    return vector[::2] + vector[1::2]


def mixed(vector: list[float], transform: str, v: list[float]) -> list[float]:
    """P of a vector in the code's layout."""
    size = len(vector)
    if transform == "householder":
        share = 2 * math.fsum(a * b for a, b in zip(v, vector, strict=True)) / math.fsum(a * a for a in v)
        return [x - share * a for x, a in zip(vector, v, strict=True)]
    if transform == "dct":
        return [
            math.sqrt((1 if k == 0 else 2) / size)
            * math.fsum(x * math.cos(math.pi * k * (2 * n + 1) / (2 * size)) for n, x in enumerate(vector))
            for k in range(size)
        ]
    if transform == "odd_even":
        return [vector[k // 2 if k % 2 == 0 else size // 2 + (k - 1) // 2] for k in range(size)]
    return vector


def expected(vector: list[float], position: int, lrpe: Lrpe, v: list[float]) -> list[float]:
    """As the released code computes it: P, then the first `size` dimensions turn in neighbouring pairs."""
    ready = mixed(vector, lrpe.transform, v)
    size = len(vector) if lrpe.core == "rope" else 2 * math.ceil(len(vector) / 4)
    for m in range(size // 2):
        pair = complex(ready[2 * m], ready[2 * m + 1]) * cmath.exp(1j * position * 10_000 ** (-2 * m / size))
        ready[2 * m : 2 * m + 2] = [pair.real, pair.imag]
    return ready


@every
def test_a_head_is_mixed_and_then_turned_as_in_the_released_code(lrpe: Lrpe):
    vectors, weights = heads(len(POSITIONS)), weights_of(lrpe)
    v = beside(weights["v"].tolist()) if weights else []
    ours = lrpe.turned(vectors, fp64(POSITIONS), **weights)
    for place, position in enumerate(POSITIONS):
        for head in range(HEADS):
            told = apart(expected(beside(vectors[place, 1, head].tolist()), position, lrpe, v))
            torch.testing.assert_close(ours[place, 1, head], fp64(told), rtol=0, atol=1e-11)


@pytest.mark.parametrize("head_size", [2, 6, 10])
def test_the_mixed_core_turns_half_of_the_dimensions_in_whole_pairs(head_size: int):
    frequency = Lrpe(core="mixed").frequencies(head_size)
    size = {2: 2, 6: 4, 10: 6}[head_size]
    told = [10_000 ** (-2 * m / size) if m < size // 2 else 0.0 for m in range(head_size // 2)]
    torch.testing.assert_close(frequency, fp64(told), rtol=1e-12, atol=0)


@every
def test_lengths_are_kept_and_scores_depend_on_the_distance_alone(lrpe: Lrpe):
    query, key, weights = heads(1), heads(1, seed=6), weights_of(lrpe)

    def score(at_query: int, at_key: int) -> Tensor:
        turned = (lrpe.turned(each, fp64([at]), **weights) for each, at in ((query, at_query), (key, at_key)))
        return (next(turned) * next(turned)).sum(-1)

    ours = lrpe.turned(query, fp64([77]), **weights)
    torch.testing.assert_close(ours.norm(dim=-1), query.norm(dim=-1), rtol=1e-12, atol=0)
    torch.testing.assert_close(score(107, 100), score(7, 0), rtol=0, atol=1e-11)
    assert not torch.allclose(score(7, 0), score(6, 0))
    # P cancels where nothing has turned
    torch.testing.assert_close(score(5, 5), (query * key).sum(-1), rtol=0, atol=1e-11)


@every
def test_a_constant_mix_is_one_of_the_projections(lrpe: Lrpe):
    """LRPE's scores are RoPE's of queries and keys that were mixed before."""
    vectors, weights, position = heads(len(POSITIONS)), weights_of(lrpe), fp64(POSITIONS)
    plain = Rope(fraction=0.5 if lrpe.core == "mixed" else 1.0)
    assert_exact_equal(
        lrpe.turned(vectors, position, **weights), plain.turned(lrpe.mixed(vectors, **weights), position)
    )


def test_it_is_rope_without_a_mix():
    vectors, position = heads(len(POSITIONS)), fp64(POSITIONS)
    assert_exact_equal(Lrpe(transform="identity").turned(vectors, position), Rope().turned(vectors, position))
    assert not Lrpe(transform="identity").layer_weights(SIZES, torch.Generator())


def test_the_vectors_length_does_not_matter_nor_get_a_gradient():
    lrpe = Lrpe(vector="learned", vector_of_each_head=True)
    v = weights_of(lrpe)["v"].requires_grad_()
    assert v.shape == (HEADS, D)
    ours, longer = (lrpe.mixed(heads(4), v=length * v) for length in (1, 1000))
    torch.testing.assert_close(ours, longer, rtol=1e-12, atol=1e-12)
    (ours * heads(4, seed=8)).sum().backward()
    assert (v.grad.abs().amax(-1) > 1e-3).all()
    torch.testing.assert_close((v.grad * v).sum(-1), torch.zeros(HEADS).double(), rtol=0, atol=1e-12)


def test_a_vector_of_each_head_mixes_heads_apart():
    lrpe = Lrpe(vector_of_each_head=True)
    assert lrpe.turns_heads_apart
    assert not Lrpe().turns_heads_apart
    v, vectors = weights_of(lrpe)["v"], heads(1)
    for head in range(HEADS):
        assert_exact_equal(lrpe.mixed(vectors, v=v)[:, :, head], Lrpe().mixed(vectors[:, :, head], v=v[head]))


def test_heads_in_bf16_are_mixed_and_turned_in_fp32():
    lrpe, position = Lrpe(transform="dct"), torch.tensor([3.0, 700.0])
    vectors = heads(2).bfloat16()
    ours = lrpe.turned(vectors, position)
    assert ours.dtype == torch.bfloat16
    assert_exact_equal(ours, lrpe.turned(vectors.float(), position).bfloat16())


@pytest.mark.parametrize("transform", ["identity", "dct", "odd_even"])
@pytest.mark.parametrize("option", [{"vector": "learned"}, {"vector_of_each_head": True}])
def test_a_vector_without_reflection_is_refused(transform: str, option: dict[str, object]):
    with pytest.raises(ValidationError, match=f"means nothing under transform={transform}"):
        Lrpe.model_validate({"transform": transform, **option})


def test_learned_says_whether_the_vector_is():
    assert not Lrpe().learned
    assert Lrpe(vector="learned").learned
    assert Lrpe(vector="learned", vector_of_each_head=True).learned
