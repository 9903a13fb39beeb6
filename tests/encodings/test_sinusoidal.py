"""The waves added to embeddings, against the paper's formula in Python's floats."""

import math

import pytest
import torch
from pydantic import ValidationError

from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.sinusoidal import Sinusoidal
from tests.encodings.oracle import fp64

POSITIONS = [0, 1, 2, 63, 1000, 131_071]


@pytest.mark.parametrize(("base", "amplitude"), [(10_000.0, 1.0), (500.0, 0.02)])
def test_sines_and_cosines_alternate_as_in_the_paper(base: float, amplitude: float) -> None:
    added = Sinusoidal(base=base, amplitude=amplitude).added(fp64(POSITIONS), 6)
    expected = [
        [amplitude * wave(position / base ** (2 * m / 6)) for m in range(3) for wave in (math.sin, math.cos)]
        for position in POSITIONS
    ]
    torch.testing.assert_close(added, fp64(expected), rtol=0, atol=1e-10)


def test_an_odd_size_leaves_the_last_cosine_out() -> None:
    odd = Sinusoidal().added(fp64(POSITIONS), 5)
    assert odd.shape == (len(POSITIONS), 5)
    expected = [math.sin(position / 10_000 ** (4 / 5)) for position in POSITIONS]
    torch.testing.assert_close(odd[:, 4], fp64(expected), rtol=0, atol=1e-10)


def test_the_paper_shifts_positions_by_a_rotation() -> None:
    """PE(i + k) is a linear function of PE(i), the one that RoPE turns by."""
    near, far = (Sinusoidal().added(fp64([position]), 8)[0].unflatten(-1, (4, 2)) for position in (70, 90))
    angle = Rope().angles(fp64([20]), 8)[0]
    sin, cos = near.unbind(-1)
    turned = torch.stack((sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()), dim=-1)
    torch.testing.assert_close(far, turned, rtol=0, atol=1e-12)


def test_fp32_waves_are_exact_however_far() -> None:
    position = torch.arange(0, 131_072, 257)
    exact, rounded = (Sinusoidal().added(position.to(dtype), 64) for dtype in (torch.float64, torch.float32))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=2**-21)


def test_places_of_many_samples_have_waves_of_their_own() -> None:
    places = torch.tensor([[0.0, 3.0], [9.0, 1.0]])
    added = Sinusoidal().added(places, 4)
    assert added.shape == (2, 2, 4)
    assert added[1, 0].equal(Sinusoidal().added(torch.tensor([9.0]), 4)[0])


@pytest.mark.parametrize("options", [{"base": 1.0}, {"amplitude": 0.0}])
def test_what_makes_no_waves_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Sinusoidal.model_validate(options)
