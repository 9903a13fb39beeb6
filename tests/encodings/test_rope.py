"""RoPE's angles and the turning of queries and keys, against complex numbers in Python's floats."""

import cmath
import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.rotate import rotate
from tests.encodings.oracle import fp64

HEAD_SIZE = 8
POSITIONS = [0, 1, 2, 63, 1000, 131_071]


def heads(length: int, head_size: int = HEAD_SIZE, seed: int = 5) -> Tensor:
    """Queries or keys `[S, B, H, D]` in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, 2, 3, head_size, dtype=torch.float64, generator=generator)


def turned(vector: list[float], position: int, base: float) -> list[float]:
    """A head's vector after its pairs (m, m + D/2), as complex numbers, were multiplied by e^(i p base^(-2m/D))."""
    half = len(vector) // 2
    pairs = [
        complex(vector[m], vector[m + half]) * cmath.exp(1j * position * base ** (-2 * m / len(vector)))
        for m in range(half)
    ]
    return [pair.real for pair in pairs] + [pair.imag for pair in pairs]


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_angles_are_the_position_times_the_inverse_wavelength(base: float) -> None:
    angle = Rope(base=base).angles(fp64(POSITIONS), 16)
    expected = [[position * base ** (-2 * m / 16) for m in range(8)] for position in POSITIONS]
    torch.testing.assert_close(angle, fp64(expected), rtol=1e-12, atol=0)


def test_fp32_angles_are_exact_up_to_whole_turns_however_far() -> None:
    position = torch.arange(131_072)
    exact, rounded = (Rope().angles(position.to(dtype), 32) for dtype in (torch.float64, torch.float32))
    assert rounded.dtype == torch.float32
    for turn in (torch.cos, torch.sin):
        # an angle in fp32 is below 2 pi: half a unit in its last place is 2^-22
        torch.testing.assert_close(turn(rounded.double()), turn(exact), rtol=0, atol=2**-22)


def test_rotation_is_multiplication_by_a_complex_unit() -> None:
    vectors = heads(len(POSITIONS))
    ours = rotate(vectors, Rope(base=100.0).angles(fp64(POSITIONS), HEAD_SIZE))
    for place, position in enumerate(POSITIONS):
        for batch in range(2):
            for head in range(3):
                expected = turned(vectors[place, batch, head].tolist(), position, base=100.0)
                # the product p base^(-2m/D) of 10^5 has an error of 10^-11
                torch.testing.assert_close(ours[place, batch, head], fp64(expected), rtol=0, atol=1e-10)


def test_scores_depend_on_the_difference_of_positions_alone() -> None:
    query, key = heads(1, seed=6), heads(1, seed=7)

    def score(query_position: int, key_position: int) -> Tensor:
        at = (Rope().angles(fp64([position]), HEAD_SIZE) for position in (query_position, key_position))
        return (rotate(query, next(at)) * rotate(key, next(at))).sum(-1)

    for distance in (0, 1, 1000):
        near, far = score(distance, 0), score(100_000 + distance, 100_000)
        torch.testing.assert_close(far, near, rtol=0, atol=1e-9)
    assert not torch.allclose(score(1, 0), score(2, 0))
    assert not torch.allclose(score(1, 0), score(0, 1)), "the sign of the distance counts"


def test_rotation_keeps_lengths_and_position_zero() -> None:
    vectors = heads(len(POSITIONS))
    ours = rotate(vectors, Rope().angles(fp64(POSITIONS), HEAD_SIZE))
    torch.testing.assert_close(ours.norm(dim=-1), vectors.norm(dim=-1), rtol=1e-12, atol=0)
    assert ours[0].equal(vectors[0])
    assert not torch.allclose(ours[1], vectors[1])


@pytest.mark.parametrize(("fraction", "turning"), [(1.0, 4), (0.5, 2), (0.25, 1), (0.3, 1), (0.4, 2), (0.9, 4)])
def test_a_fraction_turns_its_first_pairs_with_the_frequencies_of_a_smaller_head(fraction: float, turning: int) -> None:
    rope = Rope(fraction=fraction)
    angle = rope.angles(fp64(POSITIONS), HEAD_SIZE)
    assert rope.turning_pairs(HEAD_SIZE) == turning
    torch.testing.assert_close(
        angle[:, :turning], Rope().angles(fp64(POSITIONS), 2 * turning), rtol=1e-12, atol=0, msg="frequencies"
    )
    assert not angle[:, turning:].any()
    vectors = heads(len(POSITIONS))
    ours = rotate(vectors, angle)
    kept = [*range(turning, 4), *range(4 + turning, 8)]
    assert ours[..., kept].equal(vectors[..., kept])


def test_whole_pairs_survive_a_fraction_that_binary_cannot_hold() -> None:
    for pairs in range(1, 200):
        for turning in range(1, pairs + 1):
            assert Rope(fraction=turning / pairs).turning_pairs(2 * pairs) == turning


def test_heads_keep_their_type_and_turn_in_that_of_the_angle() -> None:
    vectors = heads(1, head_size=2).bfloat16()
    angle = Rope().angles(torch.tensor([3.0]), 2)
    ours = rotate(vectors, angle)
    assert ours.dtype == torch.bfloat16
    assert ours.equal(rotate(vectors.float(), angle).bfloat16())


def test_gradients_turn_back() -> None:
    vectors = heads(3).requires_grad_()
    cotangent = heads(3, seed=8)
    angle = Rope().angles(fp64([0, 5, 700]), HEAD_SIZE)
    rotate(vectors, angle).backward(cotangent)
    torch.testing.assert_close(vectors.grad, rotate(cotangent, -angle), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", [{"base": 1.0}, {"base": math.inf}, {"fraction": 0.0}, {"fraction": 1.1}])
def test_what_makes_no_rotation_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Rope.model_validate(options)
