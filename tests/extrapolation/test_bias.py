"""Tricks that change a bias, against ALiBi's and MEP's formulas in Python's floats."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding, LayerSizes
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.t5 import T5
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.bias import AlibiInterpolation, BiasClamp
from megatron_mep.extrapolation.window import Window
from tests.encodings.oracle import fp64
from tests.support.tolerance import assert_exact_equal

HEADS, LENGTH = 8, 16
DISTANCES = [0.0, 1.0, 7.0, 63.0, 1000.0, 131_071.0]
SLOPES = [2.0**-head for head in range(1, HEADS + 1)]


def weights_of(encoding: Encoding) -> dict[str, Tensor]:
    declared = encoding.layer_weights(LayerSizes(HEADS, 32, 4), torch.Generator().manual_seed(0))
    return {name: weight.value for name, weight in declared.items()}


def bias_of(encoding: Encoding) -> Tensor:
    return encoding.of_distance(fp64(DISTANCES), **weights_of(encoding))


def test_slopes_are_divided():
    expected = [[-slope / 4 * distance for distance in DISTANCES] for slope in SLOPES]
    changed = AlibiInterpolation(factor=4).applied(Alibi(), LENGTH)
    torch.testing.assert_close(bias_of(changed), fp64(expected), rtol=1e-12, atol=0)
    assert changed.name == "alibi + alibi_interpolation"


def test_both_kernels_of_mep_have_their_slopes_divided():
    def mean(slope: float, distance: float) -> float:
        exponents = (-slope / 4 * distance, -((slope / 4 * distance) ** 2))
        return max(exponents) + math.log(math.fsum(math.exp(one - max(exponents)) for one in exponents) / 2)

    expected = [[mean(slope, distance) for distance in DISTANCES] for slope in SLOPES]
    changed = AlibiInterpolation(factor=4).applied(Mep(), LENGTH)
    torch.testing.assert_close(bias_of(changed), fp64(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("encoding", [Alibi(), Mep()])
def test_a_factor_of_one_leaves_every_bit(encoding):
    assert_exact_equal(bias_of(AlibiInterpolation(factor=1).applied(encoding, LENGTH)), bias_of(encoding))


def test_far_keys_keep_a_weight_that_bf16_can_hold():
    changed = bias_of(BiasClamp(bound=-133 * math.log(2)).applied(Alibi(), LENGTH))
    expected = [[max(-slope * distance, -133 * math.log(2)) for distance in DISTANCES] for slope in SLOPES]
    torch.testing.assert_close(changed, fp64(expected), rtol=1e-12, atol=0)
    assert changed.float().exp().bfloat16().min() > 0
    assert bias_of(Alibi()).float().exp().bfloat16().min() == 0, "otherwise this shows nothing"


def test_a_bound_of_zero_leaves_no_bias():
    assert not bias_of(BiasClamp(bound=0).applied(Alibi(), LENGTH)).any()


def test_biases_of_positions_are_clamped_too():
    fire = Fire().resolved(LENGTH)
    position = torch.arange(40, dtype=torch.float64)
    plain = fire.of_positions(position, position, **weights_of(fire))
    bound = float(plain.median()) if plain.median() < 0 else -1e-3
    clamped = BiasClamp(bound=bound).applied(fire, LENGTH).of_positions(position, position, **weights_of(fire))
    assert_exact_equal(clamped, plain.clamp(min=bound))
    assert not clamped.equal(plain)


def test_what_a_window_excludes_stays_excluded():
    both = extrapolated(Alibi(), [Window(size=8), BiasClamp(bound=-8)], LENGTH)
    assert bias_of(both)[:, 3:].eq(-torch.inf).all()
    assert bias_of(both)[:, :3].isfinite().all()


def test_a_window_is_not_stretched():
    windowed = Window(size=8).applied(Alibi(), LENGTH)
    assert AlibiInterpolation(factor=2).against(windowed) is not None


@pytest.mark.parametrize("encoding", [Rope(), Nope()])
def test_they_need_a_bias(encoding):
    clamp = BiasClamp(bound=-8)
    assert clamp.against(encoding) == "needs a bias by distance or by positions"
    assert clamp.against(Window().applied(encoding, LENGTH)) is not None, "a window alone has nothing to clamp"
    assert AlibiInterpolation(factor=2).against(encoding) is not None


def test_buckets_have_no_slopes():
    assert AlibiInterpolation(factor=2).against(T5()) == "needs a bias of slopes times the distance, as it was trained"


def test_what_makes_no_bias_is_refused():
    for kind, options in (
        (AlibiInterpolation, {"factor": 0.5}),
        (AlibiInterpolation, {}),
        (BiasClamp, {"bound": 0.1}),
        (BiasClamp, {}),
    ):
        with pytest.raises(ValidationError):
            kind.model_validate(options)
